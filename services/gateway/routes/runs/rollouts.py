"""`/v1/runs/{run}/rollouts`: the groups that a run was trained on, with their tokens."""

import tempfile
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

import anyio
import anyio.to_thread
from fastapi import APIRouter, Query
from fastapi import Path as InPath
from fastapi.responses import FileResponse, Response
from pydantic import BaseModel, Field

from services.contracts.groups.rollout import RolloutGroup, RolloutStatus, RolloutSummary
from services.contracts.records import RunRecord
from services.gateway.dependencies import RUN_PROBLEMS, Dependencies, Deps, RunDep
from services.gateway.paging import Next, cursor_at, place_in, unknown_cursor
from services.gateway.run_file_retention import rollouts_are_over
from services.http import OpenFile, Problem, responses
from services.rollouts.parts import parts_of
from services.rollouts.reader import Place, group, joined, page
from services.rollouts.rollout_filter import RolloutFilter

router = APIRouter(prefix="/v1/runs", tags=["runs"])

READERS = anyio.CapacityLimiter(2)
"""Requests that decode Parquet at once: each holds some row groups in memory."""
FOLDER = "rollouts"
NUMBER = 1 << 32
PROBLEMS: dict[int | str, str] = {**RUN_PROBLEMS, 404: "There is no such run, step or group"}
PARQUET: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "One row an answer (docs/operate.md)",
        "content": {"application/vnd.apache.parquet": {}},
    }
}


class Rollouts(BaseModel):
    """Answers that a run was trained on, the newest step first."""

    run: str = Field(description="The run's id.")
    rollouts: list[RolloutSummary] = Field(description="The answers; of a step by group.")
    damaged: list[str] = Field(
        description="Files that cannot be read; answers in them are missing here."
    )
    none_because: str | None = Field(
        description="Why there are no answers; null if there are some.",
        examples=["no trained answers fit"],
    )
    next: Next


class RolloutQuery(BaseModel):
    """The answers that a request asks for."""

    step: int | None = Field(None, ge=1, lt=NUMBER, description="Only of this step.")
    min_reward: float | None = Field(None, description="Only with at least this reward.")
    max_reward: float | None = Field(None, description="Only with at most this reward.")
    status: RolloutStatus | None = Field(
        None,
        description="Only with this status of the scoring, or only answers that were `truncated`, "
        "or `untrained` (not in the loss).",
    )
    row: int | None = Field(None, ge=0, lt=1 << 62, description="Only of this dataset row.")
    dataset: str | None = Field(
        None, max_length=200, description="Only of this dataset of a mixture."
    )
    group: int | None = Field(None, ge=0, lt=1 << 62, description="Only of this group.")
    min_tokens: int | None = Field(None, ge=0, lt=NUMBER, description="Only at least as long.")
    max_tokens: int | None = Field(None, ge=0, lt=NUMBER, description="Only at most as long.")
    text: str | None = Field(
        None,
        min_length=1,
        max_length=1000,
        description="Only completions with this text, in any case. Such a page ends after 0.7 s, "
        "so it may have fewer answers than `limit`, or none, and a `next`.",
    )
    limit: int = Field(50, ge=1, le=200, description="Answers of a page, at most.")
    cursor: str | None = Field(
        None, max_length=1000, description="`next` of the page before. Default: the first page."
    )

    @property
    def has_filter(self) -> bool:
        return bool(self.model_dump(exclude={"limit", "cursor"}, exclude_none=True))

    @property
    def filter(self) -> RolloutFilter:
        fields = self.model_dump(exclude={"text", "limit", "cursor"})
        return RolloutFilter(**fields)


def place_of_cursor(cursor: str | None) -> Place | None:
    """Return the place in a cursor. Raises Problem 422."""
    if cursor is None:
        return None
    place = place_in(cursor)
    if len(place) != 3 or not all(type(part) is int and 0 <= part < 1 << 62 for part in place):
        raise unknown_cursor(cursor)
    step, number, sample = place
    return int(step), int(number), int(sample)


@router.get(
    "/{run}/rollouts",
    operation_id="rollouts_list",
    summary="Trained answers",
    responses=responses(RUN_PROBLEMS),
)
async def rollouts(
    deps: Deps, record: RunDep, wanted: Annotated[RolloutQuery, Query()]
) -> Rollouts:
    """Answers that the run was trained on, filtered, the newest step first. A run keeps the share
    `rollout.keep_share` of its groups; groups that were dropped before training are not here."""
    read = partial(
        page,
        deps.volume.path(f"runs/{record.id}/{FOLDER}"),
        wanted.filter,
        wanted.text,
        wanted.limit,
        place_of_cursor(wanted.cursor),
    )
    shown = await anyio.to_thread.run_sync(read, limiter=READERS)
    is_empty = not shown.rollouts and not shown.damaged and wanted.cursor is None
    why = "no trained answers fit" if wanted.has_filter else "no trained answers are kept yet"
    return Rollouts(
        run=record.id,
        rollouts=shown.rollouts,
        damaged=shown.damaged,
        none_because=(why_none(deps, record) or why) if is_empty else None,
        next=None if shown.next is None else cursor_at(shown.next),
    )


def why_none(deps: Dependencies, record: RunRecord) -> str | None:
    """Say why a run keeps no answers at all. Return None if it may keep some."""
    if record.kind == "sft":
        return (
            "a supervised run samples no answers: `headrace watch` and `headrace report` show its "
            "validation, and `headrace eval` samples some"
        )
    if rollouts_are_over(record, deps.settings):
        days = deps.settings.keep_rollouts_days
        return f"its answers were deleted {days:g} days after its end (HEADRACE_KEEP_ROLLOUTS_DAYS)"
    return None


Step = Annotated[int, InPath(ge=1, lt=NUMBER, description="The step.", examples=[12])]


@router.get(
    "/{run}/rollouts/{step}",
    operation_id="rollouts_download",
    summary="Trained answers of a step as Parquet",
    response_class=FileResponse,
    responses=PARQUET | responses(PROBLEMS),
)
async def download(deps: Deps, record: RunDep, step: Step) -> Response:
    """All kept answers of a step with their tokens, as one Parquet file: load it with
    `pandas.read_parquet` or `polars.read_parquet`."""
    folder = deps.volume.path(f"runs/{record.id}/{FOLDER}")
    read = partial(_opened, folder, step)
    file = await anyio.to_thread.run_sync(read, limiter=READERS)
    if file is None:
        raise Problem(HTTPStatus.NOT_FOUND, f"run {record.id} keeps no rollouts of step {step}")
    response = OpenFile(file, deps.bandwidth)
    name = f"{record.id}-step-{step}.parquet"
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    response.headers["Content-Type"] = "application/vnd.apache.parquet"
    return response


def _opened(folder: Path, step: int) -> Any:
    """Open the answers of a step as one file. Return None without parts. If several ranks wrote
    parts, they are joined in a file without a name."""
    parts = parts_of(folder, step)
    if len(parts) == 1:
        return parts[0].open("rb")
    with tempfile.TemporaryDirectory(prefix="headrace-rollouts-") as temporary:
        target = Path(temporary) / "joined.parquet"
        return target.open("rb") if parts and joined(folder, step, target) else None


@router.get(
    "/{run}/rollouts/{step}/{group}",
    operation_id="rollouts_get",
    summary="A trained group",
    response_model=RolloutGroup,
    responses=responses(PROBLEMS),
)
async def one_group(
    deps: Deps,
    record: RunDep,
    step: Step,
    group_number: Annotated[
        int, InPath(alias="group", ge=0, lt=1 << 62, description="The group's task.")
    ],
) -> Response:
    """A group with all its answers: each token's text, log-probabilities, entropy and version, and
    what the answer earned."""
    folder = deps.volume.path(f"runs/{record.id}/{FOLDER}")

    def read() -> bytes | None:
        whole = group(folder, record.id, step, group_number)
        # A group may have a million numbers: not on the event loop.
        return None if whole is None else whole.model_dump_json().encode()

    body = await anyio.to_thread.run_sync(read, limiter=READERS)
    if body is None:
        raise Problem(
            HTTPStatus.NOT_FOUND,
            f"run {record.id} keeps no group {group_number} of step {step}; GET "
            f"/v1/runs/{record.id}/rollouts?step={step} lists those that it keeps",
        )
    return Response(body, media_type="application/json")
