"""`/v1/series`: metrics of several runs, cut for charts; `/v1/runs/{run}/series/names`."""

from http import HTTPStatus
from typing import Annotated, Any

import anyio.to_thread
import msgspec
import numpy as np
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from services.gateway.dependencies import RUN_PROBLEMS, Deps, RunDep, find_run
from services.http import UNCHANGED, Problem, responses, unless_tagged
from services.series import Buckets, Numbers, RunSeries, X, bucket_width, rounded

Found = tuple[str, str, Numbers, Numbers]
"""A metric of a run: the run's id, the name, places, and values."""

MOST_VALUES = 5_000_000
"""Values of one answer: about 150 MB of text if each stands for a bucket."""

router = APIRouter(prefix="/v1", tags=["runs"])


class SeriesQuery(BaseModel):
    """The metrics that a chart shows."""

    runs: list[str] = Field(
        min_length=1,
        max_length=100,
        description="Ids or names of runs.",
        examples=[["gsm8k-20260801-1f3a"]],
    )
    names: list[str] = Field(
        min_length=1,
        max_length=500,
        description="Names of metrics, as in docs/metrics.md. Metrics of an evaluation have its "
        "held-out set in their names: `evaluation/SET/accuracy`.",
        examples=[["reward/mean", "train/entropy"]],
    )
    points: int = Field(1000, ge=1, le=10_000, description="Most values of one series.")
    x: X = Field(
        "step",
        description="What the values stand over: `step`; `time`, in seconds since the run's first "
        "step began; `tokens` and `samples`, which the run itself has trained until then. An "
        "evaluation stands where its step stands.",
    )
    from_: float | None = Field(
        None, alias="from", allow_inf_nan=False, description="Only places from here on."
    )
    to: float | None = Field(None, allow_inf_nan=False, description="Only places up to here.")


class Series(BaseModel):
    """One metric of one run, in rising places. A value that is not finite (a gradient norm that
    overflowed) is left out."""

    run: str = Field(description="The run's id.")
    name: str = Field(description="The metric.")
    x: list[float] = Field(description="Places on the axis; of a bucket the last one in it.")
    mean: list[float] = Field(
        description="The values, or the means of buckets, with 5 significant digits."
    )
    min: list[float] | None = Field(
        description="The least value of each bucket; null: `mean` has the values themselves."
    )
    max: list[float] | None = Field(description="The largest value of each bucket, or null.")
    count: list[int] | None = Field(description="Values in each bucket, or null.")


class SeriesAnswer(BaseModel):
    """Series by run, then by name, in the order of the request."""

    series: list[Series] = Field(
        description="A metric that a run does not have, or not between `from` and `to`, is missing."
    )


class NewestValue(BaseModel):
    """A metric's newest value."""

    name: str = Field(description="The metric, as `names` of `GET /v1/series` takes it.")
    step: int = Field(description="The step that the value is of.")
    value: float | None = Field(description="Exact; null: it was not finite.")
    count: int = Field(description="Finite values so far.")


class SeriesNames(BaseModel):
    """The metrics of a run."""

    run: str = Field(description="The run's id.")
    names: list[NewestValue] = Field(description="In alphabetical order.")


@router.get(
    "/series",
    operation_id="series_get",
    summary="Metrics for charts",
    response_model=SeriesAnswer,
    responses={**responses(RUN_PROBLEMS), **UNCHANGED},
)
async def several(deps: Deps, request: Request, query: Annotated[SeriesQuery, Query()]) -> Response:
    """Metrics of several runs, each with at most `points` values. More values are cut into buckets
    of equal width, the same for all series of the request, with the mean, the least and the largest
    value of each. An answer has at most 5,000,000 values. It has an `ETag`. For exact values use
    `GET /v1/runs/RUN/metrics`."""
    ids = list(dict.fromkeys([(await find_run(deps, run)).id for run in query.runs]))
    names = list(dict.fromkeys(query.names))
    return await anyio.to_thread.run_sync(answer_of, deps.series, request, query, ids, names)


@router.get(
    "/runs/{run}/series/names",
    operation_id="series_names_get",
    summary="Names and newest values of a run's metrics",
    responses=responses(RUN_PROBLEMS),
)
async def names(deps: Deps, record: RunDep) -> SeriesNames:
    """Each metric that the run has written, with its newest value."""

    def read() -> list[NewestValue]:
        with deps.series.of(record.id) as columns:
            return [
                NewestValue(
                    name=name,
                    step=column.newest_step,
                    value=column.newest,
                    count=len(column.steps),
                )
                for name, column in sorted(columns.columns.items())
            ]

    return SeriesNames(run=record.id, names=await anyio.to_thread.run_sync(read))


def answer_of(
    series: RunSeries, request: Request, query: SeriesQuery, ids: list[str], names: list[str]
) -> Response:
    """Return the series, or 304. Raises Problem 422 if they have too many values."""
    state = [str(request.url.query)]
    drawn: list[Found] = []
    values = 0
    for run in ids:
        with series.of(run) as columns:
            state.append(f"{run} {columns.tag}")
            of_run = columns.series(names, query.x, query.from_, query.to)
            for part in of_run:
                drawn.append((run, *part))
                values += min(len(part[1]), query.points)
                if values > MOST_VALUES:
                    raise Problem(
                        HTTPStatus.UNPROCESSABLE_ENTITY,
                        f"the answer has more than {MOST_VALUES:,} values: ask for fewer runs, "
                        "names or points at once",
                    )
    return unless_tagged(request, "\n".join(state).encode(), lambda: _body(drawn, query.points))


def _body(drawn: list[Found], points: int) -> bytes:
    low = min((float(places[0]) for _, _, places, _ in drawn), default=0.0)
    high = max((float(places[-1]) for _, _, places, _ in drawn), default=0.0)
    width = bucket_width(low, high, points)
    # Most metrics of a run share their places.
    encoded: dict[int, tuple[msgspec.Raw, Buckets | None, msgspec.Raw | None]] = {}
    answer: list[dict[str, Any]] = []
    for run, name, places, values in drawn:
        if id(places) not in encoded:
            buckets = Buckets(places, width) if len(places) > points else None
            encoded[id(places)] = (
                (_json(places), None, None)
                if buckets is None
                else (_json(buckets.places), buckets, _json(buckets.count))
            )
        x, buckets, count = encoded[id(places)]
        if buckets is None:
            mean, least, largest = _list(rounded(values)), None, None
        else:
            mean, least, largest = map(_list, buckets.cut(values))
        answer.append(
            {
                "run": run,
                "name": name,
                "x": x,
                "mean": mean,
                "min": least,
                "max": largest,
                "count": count,
            }
        )
    return msgspec.json.encode({"series": answer})


def _json(numbers: Numbers) -> msgspec.Raw:
    """Return whole numbers, or numbers with at most three decimals, as JSON."""
    if numbers.dtype == np.float64:
        numbers = np.round(numbers, 3)
        if not np.any(numbers % 1):
            numbers = numbers.astype(np.int64)
    return _list(numbers)


def _list(numbers: Numbers) -> msgspec.Raw:
    # Text now: as Python objects all numbers of an answer take several times as much memory.
    return msgspec.Raw(msgspec.json.encode(numbers.tolist()))
