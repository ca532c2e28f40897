"""Plays environments of the library `verifiers` (0.4, its `v1`).

The library runs the episode: its harness, tools and rewards. It calls the model at an address of
the OpenAI API, here the session's. The dataset has each task's data as JSON, as prime-rl sends it
to a server of environments; the taskset's class makes the task from it.
"""

import contextlib
import itertools
import json
import os
import tomllib
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

from services.environments.playing import EnvironmentFailed, NoEnvironment, PlayedEpisode, require

COLUMN = "verifiers_task"
"""The column of a dataset's row with the data of its task."""
LOCAL = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
"""Default config of a role: a chat, without code that runs here. The library's default is a shell
in a sandbox of Prime Intellect."""


def environment_of(name: str, config: Path | None, turns: int | None = None) -> Any:
    """Load the library's environment: the taskset `name`, with the config in a TOML or JSON file
    (the table `env` of `vf-eval`'s files, or the whole file), and at most `turns` turns unless the
    config sets another limit. Raises NoEnvironment."""
    require("verifiers")
    raw = _read(config) if config else {}
    raw = raw.get("env", raw)
    raw["taskset"] = {**raw.get("taskset", {}), "id": name}
    try:
        import verifiers.v1 as vf
        from verifiers.v1.configs.agent import agent_config_fields

        roles = agent_config_fields(vf.env_config_type(name, raw.get("id", ""))())
        for role in roles:
            raw[role] = {"max_turns": turns, **LOCAL, **raw.get(role, {})}
        return vf.load_environment(vf.resolve_env_config(raw))
    except Exception as error:  # an environment is a program, and raises what it likes
        raise NoEnvironment(f"the verifiers environment {name!r} does not load: {error}") from error


def rows_of(name: str, config: Path | None, count: int) -> Iterator[bytes]:
    """Yield the dataset's rows for the first `count` tasks, as lines of JSON. Raises
    NoEnvironment."""
    environment = environment_of(name, config)
    try:
        for task in itertools.islice(environment.taskset, count):
            data = task.data.model_dump(mode="json", exclude_none=True)
            prompt = data.get("prompt") or data.get("description") or data.get("name") or name
            if not isinstance(prompt, str):
                prompt = [{key: item[key] for key in ("role", "content")} for item in prompt]
            yield json.dumps({"prompt": prompt, COLUMN: data}).encode() + b"\n"
    except Exception as error:
        raise NoEnvironment(f"the tasks of {name!r} do not load: {error}") from error


class VerifiersEnvironment:
    """Plays the tasks of one environment."""

    def __init__(self, name: str, config: Path | None, turns: int) -> None:
        """Raises NoEnvironment."""
        self._environment = environment_of(name, config, turns)
        self._task = type(self._environment.taskset).task_type()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async with self._environment.serving():
            yield

    async def play(self, group: Mapping[str, Any], session: Mapping[str, Any]) -> PlayedEpisode:
        import verifiers.v1 as vf

        data = group["columns"].get(COLUMN)
        if not isinstance(data, Mapping):
            raise EnvironmentFailed(
                f"the dataset's row has no column {COLUMN}: make the run's dataset with "
                "`headrace datasets verifiers`"
            )
        config = self._environment.config.taskset.task
        # The library takes keys only as names of environment variables. It passes variables with
        # API_KEY in their names to no process that it starts.
        variable = f"HEADRACE_SESSION_API_KEY_{session['id']}"
        os.environ[variable] = session["key"]
        try:
            task = self._task(self._task.data_type().model_validate(data), config)
            client = vf.EvalClientConfig(base_url=session["base_url"], api_key_var=variable)
            context = vf.ModelContext(model="policy", client=client)
            (slot,) = self._environment.slots(task)
            episode = await self._environment.run_slot(slot, context)
        except Exception as error:
            raise EnvironmentFailed(f"{type(error).__name__}: {error}") from error
        finally:
            del os.environ[variable]
        return _played(episode)


def _played(episode: Any) -> PlayedEpisode:
    """Return the rewards of the roles that the policy plays, by their names. Raises
    EnvironmentFailed."""
    if not episode.ok:
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        transcript = f"{errors[-1].type}: {errors[-1].message}" if errors else "it did not succeed"
        raise EnvironmentFailed(transcript[:1000])
    played = PlayedEpisode()
    for trace in episode.traces:
        if not trace.agent.trainable:
            continue
        missing = [name for name, reward in trace.rewards.items() if reward is None]
        if missing:
            raise EnvironmentFailed(f"the reward {missing[0]} was not computed")
        played.earn(None, {name: reward.value for name, reward in trace.rewards.items()})
        for branch in trace.branches:
            played.messages += [message.model_dump(mode="json") for message in branch.messages]
    return played


def _read(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text()
        table = tomllib.loads(text) if file.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError) as error:
        raise NoEnvironment(f"{file} cannot be read: {error}") from error
    if not isinstance(table, dict):
        raise NoEnvironment(f"{file} holds no table")
    return table
