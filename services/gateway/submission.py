"""From what a user submits to a run record: recipe, overrides, and everything that can be checked
before anything starts. All problems are found at once, each with its key path.
"""

import secrets
import time
from http import HTTPStatus
from typing import Annotated, Any

import httpx
from pydantic import BaseModel, ConfigDict, Field

from recipes import UnknownRecipe, find_recipe, merged
from services.contracts.config import ConfigError, MidtrainConfig, RLConfig, parse_config
from services.contracts.config.episodes import OwnEpisode, own_episodes, unknown_episode
from services.contracts.records import DatasetRecord, RunRecord, RunState
from services.contracts.scores import CheckResponse
from services.datasets import DatasetReader
from services.gateway.access import Access, missing_dataset
from services.gateway.lora_check import check_targets
from services.gateway.model_check import (
    Problems,
    check_context,
    check_critic,
    check_experts,
    check_model,
)
from services.gateway.resuming import changed_by_resume, resumable
from services.http import Problem
from services.logs import get_logger

log = get_logger(__name__)


class RunSubmission(BaseModel):
    """What `POST /v1/runs` takes. At least one of `recipe`, `config`, `resume_from`."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {
                "recipe": "grpo",
                "config": {"model": {"path": "/models/qwen"}, "data": {"dataset": "mine"}},
            }
        },
    )

    recipe: str | None = Field(None, description="A name that `GET /v1/recipes` lists.")
    config: dict[str, Any] = Field(
        default_factory=dict,
        description="Laid over the recipe key by key, or the whole config where no recipe is "
        "named. Another `type` of a section replaces that section; a list is replaced, but for the "
        'places that a mapping names (`{"rewards": {"0": {"weight": 2}}}`).',
    )
    name: Annotated[str, Field(min_length=1, max_length=100)] | None = Field(
        None, description="For people; default: the recipe's name."
    )
    pool: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")] | None = Field(
        None,
        description="The learner and the workers that are to work on it. Default: those of the run "
        "that is resumed, else the pool `default`.",
    )
    priority: int = Field(0, ge=-1000, le=1000, description="Higher goes first.")
    resume_from: str | None = Field(
        None,
        description="A run (id, beginning of the id, or name) whose checkpoint and open draws this "
        "one takes over; without `recipe` its config, too.",
    )


async def accept(given: Access, submission: RunSubmission) -> RunRecord:
    """The record to queue. Raises Problem (404 for an unknown recipe or run, 409 for a run that
    cannot be resumed, 422 listing everything that is wrong with the config)."""
    previous = await resumable(given, submission.resume_from)
    raw, name = _base(submission, previous)
    problems: Problems = []
    raw, dataset = await _check_datasets(given, raw, problems)
    raw, folder = await check_model(given, raw, problems)
    raw = await check_critic(given, raw, problems)
    await _check_verifiers(given, raw, problems)
    try:
        config = parse_config(raw)
    except ConfigError as error:
        problems = error.problems + [p for p in problems if p[0] not in dict(error.problems)]
        raise _refusal(problems) from None
    if isinstance(config, RLConfig) and folder is not None:
        problems += check_context(folder, config) + check_targets(folder, config)
        problems += check_experts(folder, config)
    if isinstance(config, RLConfig):
        await _check_episode(given, config, problems)
    if previous is not None:
        problems += changed_by_resume(config.model_dump(mode="json"), previous.config)
    max_steps = _length(config, dataset, problems)
    if previous is not None and max_steps is not None and max_steps <= previous.committed_step:
        trained = f"the run that is resumed has trained {previous.committed_step} steps"
        problems.append(("training.max_steps", f"is {max_steps}, and {trained}: set it higher"))
    if problems:
        raise _refusal(problems)
    return RunRecord(
        id=secrets.token_hex(4),
        name=name,
        pool=submission.pool or (previous.pool if previous else "default"),
        kind=config.type,
        state=RunState.QUEUED,
        priority=submission.priority,
        config=config.model_dump(mode="json"),
        warnings=_warnings(config),
        resume_from=previous.id if previous else None,
        created=time.time(),
        max_steps=max_steps,
    )


def _warnings(config: RLConfig | MidtrainConfig) -> list[str]:
    return [] if isinstance(config, MidtrainConfig) else config.warnings()


def _refusal(problems: Problems) -> Problem:
    count = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
    return Problem(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        f"the run was not queued: its config has {count}",
        problems,
    )


def _base(submission: RunSubmission, previous: RunRecord | None) -> tuple[dict[str, Any], str]:
    """The raw config after merging, and the run's name. Raises Problem (see `accept`)."""
    base: dict[str, Any] = {}
    name = "run"
    if submission.recipe is not None:
        try:
            base = find_recipe(submission.recipe).config
        except UnknownRecipe as error:
            raise Problem(HTTPStatus.NOT_FOUND, str(error)) from None
        name = submission.recipe
    elif previous is not None:
        base, name = previous.config, previous.name
    elif not submission.config:
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "nothing was submitted: name a recipe, or give a config",
            [("recipe", "is required where there is no config")],
        )
    try:
        return merged(base, submission.config), submission.name or name
    except ConfigError as error:
        raise _refusal(error.problems) from None


async def _check_datasets(
    given: Access, raw: dict[str, Any], problems: Problems
) -> tuple[dict[str, Any], DatasetRecord | None]:
    """`raw` with its datasets by id, since under the same name there may be other rows by the time
    a run is resumed; and the record of `data.dataset`, where there is one."""
    trained = None
    for section in ("data", "evaluation"):
        part = raw.get(section)
        if not isinstance(part, dict):
            continue
        if isinstance(name := part.get("dataset"), str):
            record = await _dataset(given, raw, f"{section}.dataset", name, problems)
            if record is not None:
                part = {**part, "dataset": record.id}
                trained = record if section == "data" else trained
        if isinstance(mix := part.get("mix"), list) and all(isinstance(n, str) for n in mix):
            more = [
                await _dataset(given, raw, f"{section}.mix.{i}", name, problems)
                for i, name in enumerate(mix)
            ]
            part = {**part, "mix": [record.id for record in more if record]}
        raw = {**raw, section: part}
    return raw, trained


async def _dataset(
    given: Access, raw: dict[str, Any], key: str, name: str, problems: Problems
) -> DatasetRecord | None:
    """The dataset that `raw` names at `key`, which a supervised run can learn from."""
    record = await given.store.datasets.find(name)
    if record is None:
        problems.append((key, missing_dataset(name, await given.store.datasets.list())))
        return None
    supervised = raw.get("type") == "midtrain" and key.startswith("data.")
    if supervised and DatasetReader(given.volume, record).row(0).answer is None:
        problems.append(
            (
                key,
                f"the rows of {record.name} have no answers to imitate: upload it with a column "
                "mapping that names the answer",
            )
        )
    return record


async def _check_verifiers(given: Access, raw: dict[str, Any], problems: Problems) -> None:
    """Names and parameters, by the reward service, where it answers. Where it does not, the run
    will wait for it."""
    rewards = raw.get("rewards")
    uses = [
        (index, {"verifier": name, "params": params})
        for index, reward in enumerate(rewards if isinstance(rewards, list) else [])
        if isinstance(reward, dict)
        and isinstance(name := reward.get("verifier"), str)
        and isinstance(params := reward.get("params") or {}, dict)
    ]
    if not uses:
        return
    try:
        response = await given.http.post(
            f"{given.settings.reward_url}/v1/verifiers/check",
            json={"uses": [use for _, use in uses]},
            # A pattern that is never read costs it 5 s.
            timeout=httpx.Timeout(10, connect=3),
        )
        response.raise_for_status()
        found = CheckResponse.model_validate_json(response.content)
    except (httpx.HTTPError, ValueError) as error:
        log.warning("verifiers not checked", reason=type(error).__name__)
        return
    for problem in found.problems:
        index, _ = uses[problem.use]
        problems.append((f"rewards.{index}.{problem.path}", problem.message))


async def _check_episode(given: Access, config: RLConfig, problems: Problems) -> None:
    """Whether the type is installed: here, or with any worker that is there now."""
    episode = config.rollout.episode
    if not isinstance(episode, OwnEpisode):
        return
    workers = await given.store.workers.list()
    own = {*own_episodes(), *(name for worker in workers for name in worker.episodes)}
    if episode.name not in own:
        problems.append(("rollout.episode", unknown_episode(episode.name, own)))


def _length(
    config: RLConfig | MidtrainConfig, dataset: DatasetRecord | None, problems: Problems
) -> int | None:
    """Steps the run will have: ⌊epochs · N / B⌋ unless the config says."""
    if isinstance(config, MidtrainConfig):
        return config.training.max_steps
    if config.training.max_steps is not None or dataset is None:
        return config.training.max_steps
    epochs = config.training.epochs or 1
    batch = config.algorithm.prompts_per_step
    steps = int(epochs * dataset.rows / batch)
    if steps == 0:
        problems.append(
            (
                "training.epochs",
                f"{epochs:g} epochs over {dataset.rows} rows make no step of {batch} prompts: "
                "lower algorithm.prompts_per_step, or set training.max_steps",
            )
        )
    return steps
