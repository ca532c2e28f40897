"""Which runs `POST /v1/runs/RUN/pause` and `/resume` change, and what they write."""

from types import SimpleNamespace
from typing import Any

import pytest

from services.contracts.records import RunRecord
from services.gateway.run_pauses import RESUMED, pause_run, resume_run
from services.http import Problem
from tests.unit.gateway.test_run_edits import Edits, run


async def changed(act: Any, record: RunRecord, meanwhile: RunRecord | None = None) -> Edits:
    edits = Edits(record, meanwhile)
    deps: Any = SimpleNamespace(store=SimpleNamespace(run_edits=edits, runs=edits))
    assert await act(deps, record, "ann") is edits.record
    return edits


@pytest.mark.parametrize("kind", ["rl", "sft"])
async def test_a_run_that_starts_or_trains_is_paused_until_it_is_resumed(kind: str) -> None:
    for state in ("starting", "running"):
        edits = await changed(pause_run, run(state, kind=kind))
        assert (edits.fields, edits.event) == (
            {"paused_by": "ann"},
            {"by": "ann", "kind": "paused"},
        )
        assert (await changed(pause_run, edits.record)).fields == {}
    stands = run("paused", paused_by="bob", reason="on request of bob")
    edits = await changed(resume_run, stands, meanwhile=stands.model_copy(update={"step": 5}))
    assert edits.fields == {"paused_by": "", "reason": RESUMED}
    assert edits.event == {"by": "ann", "kind": "resumed"}
    assert (await changed(resume_run, edits.record)).fields == {}
    again = {"paused_by": "ann", "reason": "on request of ann"}
    assert (await changed(pause_run, edits.record)).fields == again


async def test_a_full_disk_stays_the_reason_of_a_run_that_is_resumed_meanwhile() -> None:
    edits = await changed(resume_run, run("paused", paused_by="ann", reason="the disk is full"))
    assert edits.record.reason == "the disk is full"


@pytest.mark.parametrize(
    ("act", "record", "why"),
    [
        (pause_run, run("queued"), "is queued, and has not begun: cancel it"),
        (pause_run, run("cancelling"), "is cancelling"),
        (pause_run, run("failed"), "has failed"),
        (resume_run, run("succeeded"), "`headrace resume r1` continues it as a new run"),
        (resume_run, run("paused", reason="the disk is full"), "goes on by itself once it can"),
        (pause_run, run(damage="config: no JSON"), "its record cannot be read"),
    ],
)
async def test_other_runs_stay_as_they_are_and_the_refusal_says_why(
    act: Any, record: RunRecord, why: str
) -> None:
    with pytest.raises(Problem, match=why) as refused:
        await changed(act, record)
    assert refused.value.status == 409
