"""`/v1/prompts`: add rows to a dataset, also while a run trains on it."""

from http import HTTPStatus
from typing import Any

import anyio.to_thread
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from services.contracts.rows.dataset import Row
from services.datasets import append_rows
from services.gateway.dependencies import DATASET_PROBLEMS, Deps, RequestTryDep, find_dataset
from services.http import Problem, responses
from services.recovery.record_copies import keep_copy, keep_dataset
from services.runtime.logs import get_logger

router = APIRouter(prefix="/v1/prompts", tags=["datasets"])

log = get_logger(__name__)


class Prompt(BaseModel):
    """One row to add."""

    model_config = ConfigDict(extra="forbid")

    prompt: str | list[dict[str, Any]] = Field(description="Text, or chat messages.")
    answer: Any = Field(None, description="The verifier's reference.")
    columns: dict[str, Any] = Field(
        default_factory=dict, description="Anything else that verifiers need of the row."
    )


class PromptAddition(BaseModel):
    """Rows to append to a dataset."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {"dataset": "mine", "prompts": [{"prompt": "2+2=", "answer": "4"}]}
        },
    )

    dataset: str = Field(description="Its name or id.")
    prompts: list[Prompt] = Field(
        min_length=1, max_length=100_000, description="The rows, in their order."
    )


class PromptsAdded(BaseModel):
    """Where the new rows are."""

    dataset: str = Field(description="The dataset's id.")
    added: int = Field(description="How many rows are new.")
    first: int = Field(description="Index of the first new row.")
    rows: int = Field(description="Rows of the dataset now.")


@router.post(
    "",
    status_code=HTTPStatus.CREATED,
    operation_id="datasets_append",
    summary="Add prompts to a dataset",
    responses=responses(
        DATASET_PROBLEMS
        | {422: "A prompt cannot be used", 507: "The data volume is full, or cannot be written"}
    ),
)
async def add(deps: Deps, addition: PromptAddition, request_try: RequestTryDep) -> PromptsAdded:
    """Append rows. A run that is training on the dataset uses them from its next epoch on."""
    record = await find_dataset(deps, addition.dataset)
    if record.damage:
        raise Problem(HTTPStatus.CONFLICT, f"{record.damage}: delete it, and upload it again")
    rows = [Row(prompt=p.prompt, answer=p.answer, columns=p.columns) for p in addition.prompts]
    segment = await anyio.to_thread.run_sync(append_rows, deps.volume.root, record.id, rows)
    path = deps.volume.path(segment.file)
    async with deps.volume.dataset_lock():
        try:
            # It may have been deleted, and be there again.
            if not await anyio.to_thread.run_sync(path.exists):
                raise KeyError(record.id)
            grown, total = await deps.store.datasets.append(record.id, segment, request_try.seed)
        except KeyError:
            path.unlink(missing_ok=True)
            raise Problem(
                HTTPStatus.NOT_FOUND, f"dataset {record.name!r} was deleted meanwhile"
            ) from None
        await keep_copy(keep_dataset, deps.volume.root, grown)
    log.info("prompts added", dataset=record.id, rows=segment.rows)
    return PromptsAdded(
        dataset=record.id, added=segment.rows, first=total - segment.rows, rows=total
    )
