"""A report that fails harms nothing else, and the report of a run has its end."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import ConnectionError, ResponseError

from services.contracts.chains import ChainRecord, ChainState, ChainStep
from services.contracts.records import RunRecord, RunState, RunSummary
from services.gateway import reports as module
from services.gateway.reports import ReportFailed, Reports
from services.report.job import Job
from services.volume import Volume
from services.volume.run_files import METRICS

ENDED = RunSummary(id="r", name="r", pool="p", kind="rl", state="failed", created=1.0)


def reports(error: Exception) -> Reports:
    """Reports that cannot be written, in a store that raises `error` for a new event."""

    async def get(run: str) -> str:
        return run

    async def add(*_: object) -> None:
        raise error

    store: Any = SimpleNamespace(runs=SimpleNamespace(get=get), events=SimpleNamespace(add=add))
    made = Reports(store, SimpleNamespace())  # type: ignore[arg-type]

    async def page_of(_: object) -> None:
        raise ReportFailed("no font")

    made.page_of = page_of  # type: ignore[method-assign, assignment]
    return made


async def test_a_run_whose_events_cannot_be_written_holds_up_no_other_report() -> None:
    wrong = "WRONGTYPE Operation against a key holding the wrong kind of value"
    await reports(ResponseError(wrong))._try(ENDED)


async def test_a_report_is_tried_again_when_redis_is_back() -> None:
    with pytest.raises(ConnectionError):
        await reports(ConnectionError("away"))._try(ENDED)


def record(state: RunState, finished: float | None) -> RunRecord:
    return RunRecord(
        id="r", name="r", pool="p", kind="rl", state=state, config={}, created=1.0,
        finished=finished,
    )  # fmt: skip


def chain_record(state: ChainState, finished: float | None) -> ChainRecord:
    step = ChainStep(name="one", recipe=None, config={}, runs=["r"])
    return ChainRecord(
        id="chain-1", name="c", pool="p", priority=0, created=1.0, steps=[step], state=state,
        finished=finished,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["run", "chain"])
async def test_a_report_is_drawn_again_if_the_run_ended_while_it_was_drawn(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was newer than the end, so it was never written again, and said `running` for good."""
    run, chain = record(RunState.RUNNING, None), chain_record(ChainState.RUNNING, None)
    told: list[str] = []

    async def write(job: Job) -> None:
        nonlocal run, chain
        told.append(str((job.chain or job.runs[0].record)["state"]))
        run = record(RunState.SUCCEEDED, 2.0)
        chain = chain_record(ChainState.SUCCEEDED, 2.0)
        page = Path(job.page)
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(told[-1])

    async def get_run(_: str) -> RunRecord:
        return run

    async def get_chain(_: str) -> ChainRecord:
        return chain

    async def job_run(record: RunRecord, step: str) -> Any:
        return SimpleNamespace(record=record.model_dump(mode="json"))

    monkeypatch.setattr(module, "_draw", write)
    store: Any = SimpleNamespace(
        runs=SimpleNamespace(get=get_run), chains=SimpleNamespace(get=get_chain)
    )
    written = Reports(store, Volume(tmp_path))
    monkeypatch.setattr(written, "_run", job_run)
    (tmp_path / "runs" / "r").mkdir(parents=True)
    (tmp_path / "runs" / "r" / METRICS).write_text("")
    for _ in range(2):
        page = await written.page_of(run if kind == "run" else chain)
    assert page is not None
    assert page.read_text() == "succeeded"
    assert told == ["running", "succeeded"]
