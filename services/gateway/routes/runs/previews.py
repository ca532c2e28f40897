"""`/v1/preview`: rows of a dataset as a run's model will read them."""

from typing import Annotated, Any

import anyio.to_thread
import httpx
from fastapi import APIRouter
from pydantic import Field

from services.contracts.config import RLConfig
from services.contracts.preview import ReferenceVerdict, Rendering
from services.contracts.records import DatasetRecord
from services.contracts.rows.rendering import compose
from services.contracts.scores import ScoreItem, ScoreRequest, ScoreResponse
from services.datasets import DatasetReader
from services.gateway.dependencies import Dependencies, Deps
from services.gateway.submission.run_submission import Accepted, RunSubmission, accept
from services.http import Problem, responses
from services.runtime.api_key import authorization, key_for_rewards
from services.runtime.logs import get_logger

router = APIRouter(tags=["runs"])

SCORING_SECONDS = 30.0
MOST_ROWS = 50

log = get_logger(__name__)


class PreviewRequest(RunSubmission):
    """The body of `POST /v1/preview`: a submission, and the rows to show."""

    start: Annotated[int, Field(ge=0)] = Field(0, description="The first row.")
    rows: Annotated[int, Field(ge=1, le=MOST_ROWS)] = Field(3, description="How many.")


class RunPreview(Rendering):
    """Rows as the run's model will read them."""

    dataset: str | None = Field(description="The dataset's name. Null: the run has none.")
    total: int = Field(description="Its rows.")
    config: dict[str, Any] = Field(description="The run's config, defaults filled in.")
    from_datasets: dict[str, str] = Field(description="As of a run: keys that a dataset has set.")
    warnings: list[str] = Field(description="As of a run.")


@router.post(
    "/v1/preview",
    operation_id="runs_preview",
    summary="Show rows as a run's model will read them",
    responses=responses(
        {
            404: "There is no such recipe, or no such run to resume",
            409: "The run to resume is not over, or has no checkpoint, or is being deleted",
            422: "The config cannot be used",
        }
    ),
)
async def preview(deps: Deps, request: PreviewRequest) -> RunPreview:
    """Render rows of the dataset of a submission, with the chat template and the tokenizer of its
    model; nothing is queued. For a supervised run each row says which parts are trained. For other
    runs each row says what the verifiers make of the reference, given as an answer."""
    rows = range(request.start, request.start + request.rows)
    try:
        accepted = await accept(deps, request, rows=rows)
    except Problem as error:
        detail = error.detail.replace("the run was not queued", "there is nothing to show")
        raise Problem(error.status, detail, error.problems, error.headers) from None
    rendering, record = accepted.rendering, accepted.record
    dataset = await deps.store.datasets.find(str(record.config["data"].get("dataset") or ""))
    if isinstance(accepted.config, RLConfig) and dataset is not None:
        rendering = await _with_verdicts(deps, accepted, dataset)
    return RunPreview(
        **dict(rendering),
        dataset=dataset.name if dataset else None,
        total=dataset.rows if dataset else 0,
        config=record.config,
        from_datasets=record.from_datasets,
        warnings=record.warnings,
    )


async def _with_verdicts(
    deps: Dependencies, accepted: Accepted, dataset: DatasetRecord
) -> Rendering:
    """Return the rows, each with the verdicts of the run's verifiers on its reference."""
    rendering, config = accepted.rendering, accepted.config
    assert isinstance(config, RLConfig)
    indices = [row.index for row in rendering.rows]
    rows = await anyio.to_thread.run_sync(DatasetReader(deps.volume, dataset).rows, indices)
    items = [
        ScoreItem(
            id=f"{index}/{name}",
            verifier=reward.verifier,
            prompt=compose(row, config.data),
            completion=str(row.answer),
            answer=row.answer,
            params=reward.params,
            columns=row.columns,
            row=index,
        )
        for index, row in zip(indices, rows, strict=True)
        if isinstance(row.answer, str | int | float) and not isinstance(row.answer, bool)
        for name, reward in config.components.items()
    ]
    verdicts = {index: list[ReferenceVerdict]() for index in indices}
    for item, (number, status, detail) in zip(items, await _scores(deps, items), strict=True):
        index, _, name = item.id.partition("/")
        verdicts[int(index)].append(
            ReferenceVerdict(verifier=name, reward=number, status=status, detail=detail)
        )
    scored = [row.model_copy(update={"verdicts": verdicts[row.index]}) for row in rendering.rows]
    return rendering.model_copy(update={"rows": scored})


async def _scores(
    deps: Dependencies, items: list[ScoreItem]
) -> list[tuple[float | None, str, str]]:
    """Return reward, status and detail of each item, in order."""
    if not items:
        return []
    try:
        response = await deps.http.post(
            f"{deps.settings.reward_url}/v1/score",
            json=ScoreRequest(items=items).model_dump(),
            headers=authorization(key_for_rewards(deps.settings)),
            timeout=httpx.Timeout(SCORING_SECONDS, connect=3),
        )
        response.raise_for_status()
        results = ScoreResponse.model_validate_json(response.content).results
    except (httpx.HTTPError, ValueError) as error:
        log.warning("references not scored", reason=type(error).__name__)
        away = f"the reward service gave no verdict ({type(error).__name__})"
        return [(None, "error", away)] * len(items)
    return [(result.reward, result.status.value, result.detail) for result in results]
