"""Which checkpoint a call asks for, and what a client hears while no worker serves it."""

from pathlib import Path
from typing import Any

import pytest

from services.contracts.records import RunState, WorkerRecord
from services.contracts.served_models import ModelDemand
from services.gateway.openai.errors import SessionProblem
from services.gateway.policy.finished_models import demand_for, waiting
from services.gateway.policy.served_models import Asked
from tests.unit.gateway.test_policy import run, worker

DEMAND = ModelDemand("r", 4, "runs/r/checkpoints/step-000004-a")
OVER: dict[str, Any] = {"state": RunState.SUCCEEDED, "committed_step": 4}


def checkpoints(root: Path, *names: str) -> None:
    for name in names:
        (root / "runs" / "r" / "checkpoints" / name).mkdir(parents=True)


async def test_a_finished_run_answers_by_any_committed_checkpoint(tmp_path: Path) -> None:
    checkpoints(tmp_path, "step-000002-a", "step-000004-a", "step-000006-a", ".step-000003-a")
    over = run(**OVER, checkpoint=DEMAND.directory)
    assert await demand_for(tmp_path, over, Asked("r"), []) == DEMAND
    earlier = ModelDemand("r", 2, "runs/r/checkpoints/step-000002-a")
    assert await demand_for(tmp_path, over, Asked("r", 2), []) == earlier
    with pytest.raises(SessionProblem, match="no checkpoint of step 6: ask for one of r@4, r@2"):
        await demand_for(tmp_path, over, Asked("r", 6), [])


async def test_a_run_that_trains_answers_by_its_workers_and_by_its_checkpoints(
    tmp_path: Path,
) -> None:
    checkpoints(tmp_path, "step-000004-a")
    trains = run(committed_step=4, checkpoint=DEMAND.directory)
    workers = [worker("w", 5)]
    assert await demand_for(tmp_path, trains, Asked("r"), workers) is None
    assert await demand_for(tmp_path, trains, Asked("r", 5), workers) is None
    assert await demand_for(tmp_path, trains, Asked("r", 4), workers) == DEMAND
    # The error of `worker_for` names the versions that are served.
    assert await demand_for(tmp_path, trains, Asked("r", 3), workers) is None


async def test_a_run_answers_by_the_checkpoint_that_it_continues(tmp_path: Path) -> None:
    (tmp_path / "runs/p/checkpoints/step-000007-b").mkdir(parents=True)
    directory = "runs/p/checkpoints/step-000007-b"
    continued = run(state=RunState.CANCELLED, committed_step=0, checkpoint=directory)
    demand = await demand_for(tmp_path, continued, Asked("r"), [])
    assert demand == ModelDemand("r", 7, directory)


async def test_a_run_without_a_checkpoint_is_no_model(tmp_path: Path) -> None:
    over = run(state=RunState.FAILED, committed_step=0, checkpoint=None)
    with pytest.raises(SessionProblem, match="has no checkpoint") as missing:
        await demand_for(tmp_path, over, Asked("r"), [])
    assert (missing.value.status, missing.value.code) == (404, "model_not_found")


def idle(id: str, **fields: Any) -> WorkerRecord:
    return worker(id, None, run=None, state="idle", **fields)


@pytest.mark.parametrize(
    ("workers", "holder", "words", "seconds"),
    [
        ([], None, "has no worker.*`headrace up --serving 1`", 30),
        ([worker("w", 3)], None, "1 worker of pool default work on run r, and training", 30),
        ([idle("w")], None, "r@4 waits for worker w$", 5),
        ([idle("w", models=["x@1"])], None, "r@4 waits for worker w, after x@1", 5),
        (
            [idle("w", loading="r@4", starting_seconds=10.0, usual_start_seconds=45.0)],
            "w",
            "worker w loads r@4; about 40 s",
            40,
        ),
        ([idle("w", loading="r@4", starting_seconds=10.0)], "w", "about 30 s", 30),
        ([idle("w", loading="r@4")], "w", "about 5 s", 5),
    ],
)
def test_a_client_hears_what_happens_and_when_to_ask_again(
    workers: list[WorkerRecord], holder: str | None, words: str, seconds: int
) -> None:
    problem = waiting(run(**OVER), DEMAND, workers, holder)
    with pytest.raises(SessionProblem, match=words):
        raise problem
    assert problem.status == 503
    assert problem.headers == {"Retry-After": str(seconds)}
