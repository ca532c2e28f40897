"""From what a user submits to a run record: recipe, overrides, and everything that can be checked
before anything starts. All problems are found at once, each with its key path.
"""

import json
import secrets
import time
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

import httpx
from pydantic import BaseModel, ConfigDict, Field
from rapidfuzz import fuzz, process

from recipes import UnknownRecipe, find_recipe, merged
from services.contracts.config import ConfigError, MidtrainConfig, RLConfig, parse_config
from services.contracts.records import DatasetRecord, RunRecord, RunState
from services.datasets import DatasetReader
from services.gateway.access import Access, find_run, missing_dataset
from services.http import Problem
from services.logs import get_logger

Problems = list[tuple[str, str]]

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
        "named. Another `type` of a section replaces that section.",
    )
    name: Annotated[str, Field(min_length=1, max_length=100)] | None = Field(
        None, description="For people; default: the recipe's name."
    )
    pool: str = Field(
        "default",
        pattern=r"^[a-z0-9][a-z0-9-]{0,62}$",
        description="The learner and the workers that are to work on it.",
    )
    priority: int = Field(0, description="Higher goes first.")
    resume_from: str | None = Field(
        None,
        description="A run (id, beginning of the id, or name) whose checkpoint and open draws this "
        "one takes over; without `recipe` its config, too.",
    )


async def accept(given: Access, submission: RunSubmission) -> RunRecord:
    """The record to queue. Raises Problem (404 for an unknown recipe or run, 409 for a run that
    cannot be resumed, 422 listing everything that is wrong with the config)."""
    previous = await _resumable(given, submission.resume_from)
    raw, name = _base(submission, previous)
    problems: Problems = []
    datasets = await _check_datasets(given, raw, problems)
    # By id: under the same name there may be other rows by the time this run is resumed.
    for section, record in datasets.items():
        raw = {**raw, section: {**raw[section], "dataset": record.id}}
    raw = await _check_model(given, raw, problems)
    await _check_verifiers(given, raw, problems)
    try:
        config = parse_config(raw)
    except ConfigError as error:
        problems = error.problems + [p for p in problems if p[0] not in dict(error.problems)]
        raise _refusal(problems) from None
    if isinstance(config, RLConfig) and "model.path" not in dict(problems):
        problems += await _check_context(given, config)
    if previous is not None:
        problems += changed_by_resume(config.model_dump(mode="json"), previous.config)
    max_steps = _length(config, datasets.get("data"), problems)
    if problems:
        raise _refusal(problems)
    return RunRecord(
        id=secrets.token_hex(4),
        name=name,
        pool=submission.pool,
        kind=config.type,
        state=RunState.QUEUED,
        priority=submission.priority,
        config=config.model_dump(mode="json"),
        resume_from=previous.id if previous else None,
        created=time.time(),
        max_steps=max_steps,
    )


KEPT_BY_RESUME = (
    ("type",),
    ("model", "path"),
    ("training", "seed"),
    ("algorithm", "prompts_per_step"),
    ("optimizer", "type"),
)
"""What a checkpoint holds, and what a draw and a step mean: a run that goes on cannot change it."""


def changed_by_resume(config: dict[str, Any], previous: dict[str, Any]) -> Problems:
    """Keys of a whole config that differ from the resumed run's and must not."""
    problems: Problems = []
    for path in KEPT_BY_RESUME:
        new, old = _at(config, path), _at(previous, path)
        if new != old:
            problems.append(
                (
                    ".".join(path),
                    f"is {new}, but the run that is resumed has {old}, which its checkpoint "
                    "and its open draws depend on: leave it, or start a new run with model.path "
                    "run:RUN",
                )
            )
    return problems


def _at(config: dict[str, Any], path: tuple[str, ...]) -> Any:
    found: Any = config
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _refusal(problems: Problems) -> Problem:
    count = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
    return Problem(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        f"the run was not queued: its config has {count}",
        problems,
    )


async def _resumable(given: Access, reference: str | None) -> RunRecord | None:
    if reference is None:
        return None
    run = await find_run(given, reference)
    if not run.state.final:
        raise Problem(
            HTTPStatus.CONFLICT,
            f"run {run.name} ({run.id}) is {run.state}: cancel it before it is resumed, or let it "
            "go on",
        )
    if run.checkpoint is None:
        raise Problem(
            HTTPStatus.CONFLICT,
            f"run {run.name} ({run.id}) ended without a checkpoint: submit it anew",
        )
    if run.kind == "midtrain":
        raise Problem(
            HTTPStatus.CONFLICT,
            f"run {run.name} ({run.id}) is a midtraining, which has no open draws to go on with: "
            f"start from what it made, with model.path run:{run.id}",
        )
    return run


def _base(submission: RunSubmission, previous: RunRecord | None) -> tuple[dict[str, Any], str]:
    """The raw config after merging, and the run's name."""
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
    return merged(base, submission.config), submission.name or name


async def _check_datasets(
    given: Access, raw: dict[str, Any], problems: Problems
) -> dict[str, DatasetRecord]:
    """The datasets that exist, by the section that names them."""
    found: dict[str, DatasetRecord] = {}
    records = await given.store.datasets.list()
    for section in ("data", "evaluation"):
        name = _text(raw, section, "dataset")
        if name is None:
            continue
        record = next((r for r in records if name in (r.name, r.id)), None)
        if record is None:
            problems.append((f"{section}.dataset", missing_dataset(name, records)))
        else:
            found[section] = record
    record = found.get("data")
    if raw.get("type") == "midtrain" and record is not None:
        reader = DatasetReader(given.volume, record)
        if reader.row(0).answer is None:
            problems.append(
                (
                    "data.dataset",
                    f"the rows of {record.name} have no answers to imitate: upload it with a "
                    "column mapping that names the answer",
                )
            )
    return found


async def _check_model(given: Access, raw: dict[str, Any], problems: Problems) -> dict[str, Any]:
    """`raw` with the model named so that it means the same on every host and for ever."""
    path = _text(raw, "model", "path")
    if path is None or not path:
        return raw
    try:
        settled = await _settled_model(given, path)
    except (Problem, ValueError) as error:
        problems.append(("model.path", str(error)))
        return raw
    return {**raw, "model": {**raw["model"], "path": settled}}


async def _check_context(given: Access, config: RLConfig) -> Problems:
    """vLLM refuses a context longer than the positions that the model was made for; better said
    now than by its log."""
    folder = Path(config.model.path)
    if config.model.path.startswith("run:"):
        run = await find_run(given, config.model.path.removeprefix("run:"))
        folder = given.volume.root / (run.checkpoint or "")
    wanted = config.rollout.vllm.max_model_len
    positions = _positions(folder / "config.json")
    if wanted is None or positions is None or wanted <= positions:
        return []
    return [
        (
            "rollout.vllm.max_model_len",
            f"{wanted} is more than the {positions} positions of the model: set it to {positions} "
            "or less, and sampling.max_tokens below that",
        )
    ]


def _positions(path: Path) -> int | None:
    """Longest sequence by a model's config.json; None where that does not say it plainly."""
    try:
        described = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    # Scaled rotary positions go further than the number says.
    scaling = described.get("rope_scaling") or described.get("rope_parameters") or {}
    plain = scaling.get("rope_type", scaling.get("type", "default")) == "default"
    found = described.get("max_position_embeddings")
    return found if plain and isinstance(found, int) else None


async def _settled_model(given: Access, path: str) -> str:
    if path.startswith("run:"):
        run = await find_run(given, path.removeprefix("run:"))
        if run.checkpoint is None:
            raise ValueError(f"run {run.name} ({run.id}) is {run.state} and has no checkpoint yet")
        if not run.state.final:
            # Its checkpoints come and go; what this run starts from has to stay.
            raise ValueError(
                f"run {run.name} ({run.id}) is {run.state}: its checkpoint is not its last one; "
                "wait for its end, or cancel it"
            )
        return f"run:{run.id}"
    for folder in (Path(path).expanduser(), given.volume.root / path):
        if folder.is_dir():
            if not (folder / "config.json").is_file():
                raise ValueError(
                    f"{folder} holds no config.json: name a folder in Hugging Face layout"
                )
            return str(folder.resolve())
    if path.count("/") == 1 and not path.startswith((".", "/", "~")):
        # A hub name. Only a host with a network, or with the model in its cache, can tell.
        return path
    raise ValueError(
        f"there is no model at {path!r}: name a folder in Hugging Face layout, a hub name "
        "(org/name), or run:RUN for the checkpoint of an earlier run"
    )


async def _check_verifiers(given: Access, raw: dict[str, Any], problems: Problems) -> None:
    """Against the reward service, where it answers. Where it does not, the run will wait for it."""
    rewards = raw.get("rewards")
    if not isinstance(rewards, list):
        return
    try:
        response = await given.http.get(f"{given.settings.reward_url}/v1/verifiers", timeout=3)
        response.raise_for_status()
        known = sorted(str(item["name"]) for item in response.json()["verifiers"])
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        log.warning("verifiers not checked", reason=type(error).__name__)
        return
    for index, reward in enumerate(rewards):
        name = reward.get("verifier") if isinstance(reward, dict) else None
        if isinstance(name, str) and name not in known:
            near = process.extractOne(name, known, scorer=fuzz.ratio, score_cutoff=60)
            hint = f"did you mean {near[0]!r}?" if near else f"there is {', '.join(known)}"
            problems.append((f"rewards.{index}.verifier", f"no verifier {name!r}; {hint}"))


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


def _text(raw: dict[str, Any], section: str, key: str) -> str | None:
    part = raw.get(section)
    value = part.get(key) if isinstance(part, dict) else None
    return value if isinstance(value, str) else None
