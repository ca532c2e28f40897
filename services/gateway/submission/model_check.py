"""Whether the models that a submission names exist, and fit its config."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import anyio.to_thread

from headrace.config_keys import (
    CRITIC,
    MODEL_PATHS,
    POLICY,
    REFERENCE,
    TEACHER,
    text_at,
    with_value,
)
from headrace.nearby_models import nearby
from headrace.nearest import did_you_mean
from services.contracts.chains import STEP, referred
from services.contracts.config import RLConfig, SFTConfig
from services.contracts.config.lora import BESIDE_EXPERTS
from services.contracts.config.trust import asks_for_trust
from services.contracts.experts import expert_count
from services.contracts.records import RunRecord
from services.contracts.weights import ADAPTER_CONFIG
from services.gateway.dependencies import Dependencies, find_run
from services.gateway.submission.hub_check import asked_of_hub
from services.http import Problem
from services.models import ModelFolder
from services.models.agreement import contradictions
from services.models.path import (
    PREFIX,
    check_model,
    checkpoint_of,
    needs_start,
    run_named,
    run_with_step,
    step_named,
)
from services.models.vocabulary import vocabulary_difference, vocabulary_in
from services.volume.checkpoint import CHECKED_BYTES, damage

Problems = list[tuple[str, str]]
HUB_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*/[\w.-]*\w", re.ASCII)


TOKENIZERS = ("tokenizer", "vocab.", "spiece.", "sentencepiece", "tekken")
"""How the files of tokenizers begin."""
Steps = Mapping[str, ModelFolder | None]
"""The models that earlier steps of a chain will have made, by step; None: not known."""


class Models(NamedTuple):
    """The checked folders of a run's models. None: the run has no such model, or its files are
    elsewhere."""

    policy: ModelFolder | None
    critic: ModelFolder | None
    teacher: ModelFolder | None
    reference: ModelFolder | None
    """The one that `algorithm.kl.reference.path` names."""
    tokenizer: Path | None = None
    """The folder of the policy's tokenizer. An adapter has its own."""
    warnings: Sequence[str] = ()
    """Problems that do not refuse a run: contradictions between configs and weights, and names
    that could not be looked up at the hub."""


async def check_models(
    deps: Dependencies,
    raw: dict[str, Any],
    problems: Problems,
    steps: Steps | None = None,
    previous: RunRecord | None = None,
) -> tuple[dict[str, Any], Models]:
    """`raw` with its models (`MODEL_PATHS`) named so that they mean the same on every host and for
    ever; and these models. `step:NAME` is one of `steps`, and stays. `previous`: the
    run that is resumed. Adds what is wrong to `problems`."""
    old = _goes_on_from(deps, previous)
    if needs_start(raw):
        old.pop(POLICY, None)
    named: dict[str, FoundModel] = {}
    warnings: list[str] = []
    for key in MODEL_PATHS:
        if path := text_at(raw, key):
            model = named[key] = await _model_of(deps, path, steps, old.get(key))
            problems += [(key, model.problem)] if model.problem else []
            warnings += [f"{key}: {model.warning}"] if model.warning else []
            raw = with_value(raw, key, model.path)
    folders = {key: named[key].weights if key in named else None for key in MODEL_PATHS}
    policy = folders[POLICY]
    for key in (TEACHER, REFERENCE):
        if policy is not None and (other := folders[key]) is not None:
            problems += await anyio.to_thread.run_sync(_check_tokens, key, policy, other)
    # The checkpoint of a run that is resumed was written by the learner.
    for key in (POLICY, TEACHER, REFERENCE) if previous is None else ():
        if (folder := folders[key]) is not None and folder.tensors:
            verdict = await anyio.to_thread.run_sync(contradictions, folder)
            problems += [(key, text) for text in verdict.refused]
            warnings += [f"{key}: {text}" for text in verdict.warnings]
    tokenizer = named[POLICY].folder if POLICY in named else None
    return raw, Models(
        policy, folders[CRITIC], folders[TEACHER], folders[REFERENCE], tokenizer, warnings
    )


class Checkpointed(NamedTuple):
    """A model that the run which is resumed has in its checkpoint."""

    path: str | None
    """The path that the model was made from, which may be gone by now."""
    folder: Path | None
    """The model's folder; None: only the learner's host has it."""


def _goes_on_from(deps: Dependencies, previous: RunRecord | None) -> dict[str, Checkpointed]:
    """The models that the resumed run `previous` has here, by their keys."""
    if previous is None or previous.checkpoint is None:
        return {}
    folder = deps.volume.path(previous.checkpoint)
    if not folder.is_dir():
        return {}
    return {
        POLICY: Checkpointed(text_at(previous.config, POLICY), folder),
        CRITIC: Checkpointed(text_at(previous.config, CRITIC), None),
    }


def _check_tokens(key: str, policy: ModelFolder, scorer: ModelFolder) -> Problems:
    """A problem for a model that scores the policy's answers and has other tokens than the policy,
    as far as files say."""
    vocabulary, other = vocabulary_in(policy.path), vocabulary_in(scorer.path)
    if (
        vocabulary is None
        or other is None
        or not (difference := vocabulary_difference(vocabulary, other))
    ):
        return []
    return [
        (
            key,
            f"the model in {scorer.path} has another tokenizer than the policy, so it cannot "
            f"score its tokens: {difference}",
        )
    ]


class FoundModel(NamedTuple):
    """The model that a path names, as far as its files are on this host."""

    path: str
    """Means the same on every host, unless there is a problem."""
    weights: ModelFolder | None = None
    """The whole model; of an adapter its base. None: it is not here."""
    folder: Path | None = None
    """The folder that the path names; None: it is not here."""
    problem: str = ""
    warning: str = ""


async def _model_of(
    deps: Dependencies, path: str, steps: Steps | None, checkpointed: Checkpointed | None
) -> FoundModel:
    """Find the model of `path`. `checkpointed`: the model of the run that is resumed; its
    checkpoint has the weights if its path leads nowhere any more."""
    try:
        if (step := referred(path)) is not None:
            made = _made_by(step[0], path, steps)
            return FoundModel(path, made, made.path if made and made.path.is_dir() else None)
        if path.startswith(STEP):
            raise ValueError(
                f"{path}: a step's name is followed by nothing, by @best, or by @ and the number "
                f"of a step: {STEP}NAME@20"
            )
        resolved, folder, warning = await _resolved(deps, path)
        # A run's checkpoint may lie on another host's volume.
        if folder is None or not folder.is_dir():
            return FoundModel(resolved, warning=warning)
        model = await anyio.to_thread.run_sync(check_model, folder)
    except (Problem, ValueError) as error:
        if checkpointed is None or checkpointed.path != path:
            return FoundModel(path, problem=str(error))
        return FoundModel(path, await _weights_in(checkpointed.folder), checkpointed.folder)
    return FoundModel(resolved, model.weights, model.named.path, warning=warning)


async def _weights_in(folder: Path | None) -> ModelFolder | None:
    if folder is None:
        return None
    try:
        return (await anyio.to_thread.run_sync(check_model, folder)).weights
    except ValueError:
        # The learner says what is wrong with a checkpoint.
        return None


def _made_by(step: str, path: str, steps: Steps | None) -> ModelFolder | None:
    """The model that an earlier step will have made. Raises ValueError for none."""
    if steps is None:
        raise ValueError(f"{path} is what a step of a chain makes: submit both in one chain")
    if step not in steps:
        there = f"there is {', '.join(steps)}" if steps else "it is the first"
        raise ValueError(f"{path} names no earlier step; {there}{did_you_mean(step, steps)}")
    return steps[step]


class ModelPlace(NamedTuple):
    """Where the model of a path is."""

    name: str
    """Its full name, which means the same on every host."""
    folder: Path | None = None
    """None: this host does not have it."""
    warning: str = ""


async def _resolved(deps: Dependencies, path: str) -> ModelPlace:
    """Find the model of `path`: a run's checkpoint, a folder, or a name that is asked of the hub.
    Raises Problem or ValueError for an unknown model, a run that is not over, and a damaged
    checkpoint."""
    if (name := run_named(path)) is not None:
        step = step_named(path)
        try:
            named = await find_run(deps, name)
        except Problem as error:
            # A name may have an @ of its own.
            way_out = "; after @ comes the number of a step: run:RUN@20" if "@" in name else ""
            raise ValueError(f"{error}{way_out}") from None
        run = await run_with_step(named, step, deps.store.runs.get)
        folder = deps.volume.path(checkpoint_of(run, deps.volume.root, step))
        if not run.state.final:
            # Its checkpoints are deleted while it goes on.
            raise ValueError(
                f"run {run.name} ({run.id}) is {run.state}: its checkpoint is not its last one; "
                "wait for its end, or cancel it"
            )
        if folder.is_dir() and (
            problem := await anyio.to_thread.run_sync(damage, folder, CHECKED_BYTES)
        ):
            raise ValueError(f"{problem}; name an earlier one with {PREFIX}{run.id}@STEP")
        return ModelPlace(PREFIX + run.id + (f"@{step}" if step is not None else ""), folder)
    # os.path accepts names that are invalid for files or users; Path methods raise for them.
    folders = (Path(os.path.expanduser(path)), deps.volume.root / path)
    for folder in folders:
        # The check of the folder refuses links and pipes.
        if any(os.path.lexists(folder / name) for name in ("config.json", ADAPTER_CONFIG)):
            return ModelPlace(str(folder.resolve()), folder)
    near = await anyio.to_thread.run_sync(_nearby, path, deps.volume.root)
    is_here = near is not None or any(map(os.path.isdir, folders))
    if HUB_NAME.fullmatch(path) and not is_here:
        verdict = await asked_of_hub(deps.http, path)
        if verdict.refusal:
            raise ValueError(verdict.refusal)
        return ModelPlace(path, warning=verdict.warning)
    # A folder without a model gets the words of a missing folder, so clients learn of no folder.
    raise ValueError(
        f"there is no model at {path!r}{f' (did you mean {near!r}?)' if near else ''}: name a "
        "folder in Hugging Face layout, with a config.json, a hub name (org/name), or run:RUN for "
        "the checkpoint of an earlier run"
        + (", or for the hub's model of this name its folder in the hub's cache" if near else "")
    )


def _nearby(path: str, root: Path) -> str | None:
    return nearby(path, Path.cwd()) or nearby(path, root)


def check_tokenizer(models: Models) -> Problems:
    """Return a problem if the policy's folder has no tokenizer. The folder of an adapter needs
    none: its base model may have it."""
    folder = models.tokenizer
    if folder is None or (folder / ADAPTER_CONFIG).is_file():
        return []
    names = os.listdir(folder)
    if any(name.startswith(TOKENIZERS) or name.endswith(".tiktoken") for name in names):
        return []
    return [
        (
            "model.path",
            f"{folder} holds no tokenizer, so prompts cannot become tokens: add the model's "
            "tokenizer.json and tokenizer_config.json",
        )
    ]


def check_trust(deps: Dependencies, config: RLConfig | SFTConfig) -> Problems:
    """A problem for each key that asks for what only the operator may allow."""
    return [] if deps.settings.trust_remote_code else asks_for_trust(config)


def check_context(folder: ModelFolder, config: RLConfig | SFTConfig) -> Problems:
    """A problem for sequences longer than the model's positions, and for packed rows as long as
    these that do not make up a step."""
    positions = positions_of(folder)
    if isinstance(config, SFTConfig):
        try:
            config.longest_row(positions)
        except ValueError as error:
            return [("", str(error))]
        return []
    wanted = config.rollout.vllm.max_model_len
    if wanted is None or positions is None or wanted <= positions:
        return []
    return [
        (
            "rollout.vllm.max_model_len",
            f"{wanted} is more than the {positions} positions of the model: set it to {positions} "
            "or less, and sampling.max_tokens below that",
        )
    ]


def check_stop_tokens(folder: ModelFolder, config: RLConfig) -> Problems:
    """A problem for ids of stop tokens that the model does not have."""
    size = folder.config.get("vocab_size")
    unknown = [id for id in config.sampling.stop_token_ids if isinstance(size, int) and id >= size]
    if not unknown:
        return []
    named = ", ".join(map(str, unknown[:10]))
    text = f"the model has {size:,} tokens, and none of the id {named}: leave such ids out"
    return [("sampling.stop_token_ids", text)]


def check_experts(folder: ModelFolder, config: RLConfig) -> Problems:
    """A problem for adapters on a mixture of experts, or routers on any other model."""
    if not folder.config:
        return []
    if expert_count(folder.config):
        return [("model.lora", BESIDE_EXPERTS)] if config.model.lora else []
    if not config.algorithm.router.needs_experts:
        return []
    return [
        (
            "algorithm.router",
            f"the model in {folder.path} has no experts to route to: leave algorithm.router out",
        )
    ]


def positions_of(folder: ModelFolder | None) -> int | None:
    """Longest sequence of a model by its config; None if the config leaves it open."""
    config = folder.config if folder is not None else {}
    # Scaled rotary positions go further than the number says.
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    plain = scaling.get("rope_type", scaling.get("type", "default")) == "default"
    positions = config.get("max_position_embeddings")
    return positions if plain and isinstance(positions, int) else None
