"""A report that fails harms nothing but itself."""

from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import ConnectionError, ResponseError

from services.contracts.records import RunSummary
from services.gateway.reports import ReportFailed, Reports

ENDED = RunSummary(id="r", name="r", pool="p", kind="rl", state="failed", created=1.0)


def reports(error: Exception) -> Reports:
    """Of an installation in which no report can be written, and adding an event raises `error`."""

    async def get(run: str) -> str:
        return run

    async def add(*_: object) -> None:
        raise error

    store: Any = SimpleNamespace(runs=SimpleNamespace(get=get), events=SimpleNamespace(add=add))
    made = Reports(store, SimpleNamespace())  # type: ignore[arg-type]

    async def of_run(_: object) -> None:
        raise ReportFailed("no font")

    made.of_run = of_run  # type: ignore[method-assign, assignment]
    return made


async def test_a_run_whose_events_cannot_be_written_holds_up_no_other_report() -> None:
    wrong = "WRONGTYPE Operation against a key holding the wrong kind of value"
    await reports(ResponseError(wrong))._try(ENDED)


async def test_a_report_is_tried_again_when_redis_is_back() -> None:
    with pytest.raises(ConnectionError):
        await reports(ConnectionError("away"))._try(ENDED)
