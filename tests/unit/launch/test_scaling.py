"""`headrace scale` checks its requests, and chooses the devices of a new worker."""

from pathlib import Path
from typing import Any

import pytest

from services.contracts.records import RunRecord, RunState
from services.launch import LaunchError, UpOptions
from services.launch.control import Say
from services.launch.cores import plan_cores
from services.launch.part import Part
from services.launch.plan import Plan, make_plan
from services.launch.scaling import (
    GIB,
    HEARD_WITHIN,
    Scaling,
    number_of_workers,
    patience,
    require_memory,
    shared_cores,
)

FREE = UpOptions(port=0, reward_port=0)


def planned(data: Path, **options: Any) -> Plan:
    given = UpOptions(**{"port": 0, "reward_port": 0, "redis_port": 0, **options})
    return make_plan(given, data, place=lambda r, k: plan_cores([0, 1, 2, 3], r, k))


@pytest.mark.parametrize("asked", [-1, 257, "2", None, True, 1.5])
def test_only_a_sensible_number_of_workers_is_granted(tmp_path: Path, asked: Any) -> None:
    with pytest.raises(LaunchError, match="the number of workers on this machine is from 0 to 256"):
        number_of_workers({"scale": {"rollout": asked}}, planned(tmp_path))


def test_an_installation_started_without_workers_has_none(tmp_path: Path) -> None:
    without = planned(tmp_path, parts=frozenset({"redis", "gateway"}))
    with pytest.raises(LaunchError, match="started without rollout workers"):
        number_of_workers({"scale": {"rollout": 1}}, without)
    none_yet = planned(tmp_path, rollouts=0)
    assert number_of_workers({"scale": {"rollout": 1}}, none_yet) == 1


def test_a_worker_that_joins_is_started_like_the_first_on_cores_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND", raising=False)
    plan = planned(tmp_path)
    assert plan.workers is not None
    first = next(part for part in plan.parts if part.name == "rollout-0")
    second = plan.workers.part(1, 2, [first])
    assert (second.name, second.argv, second.stage) == ("rollout-1", first.argv, first.stage)
    assert first.environment["VLLM_CPU_OMP_THREADS_BIND"] == "0,1"
    assert second.environment["VLLM_CPU_OMP_THREADS_BIND"] == "0"
    third = plan.workers.part(2, 3, [first, second])
    assert third.environment["VLLM_CPU_OMP_THREADS_BIND"] == "1"
    assert {**first.environment, "VLLM_CPU_OMP_THREADS_BIND": "0"} == second.environment


class GivenUpLater:
    """A supervisor whose worker 1 joined, and was given up later."""

    def __init__(self, plan: Plan) -> None:
        assert plan.workers is not None
        self.parts = {f"rollout-{index}": plan.workers.part(index, 2, []) for index in (0, 1)}
        self.failures = {"rollout-1": "rollout-1 exited with code 1 at each of its 5 starts"}
        self.pids: dict[str, int] = {}
        self.added: list[str] = []

    def add(self, part: Part) -> None:
        self.parts[part.name] = part
        self.failures.pop(part.name, None)
        self.added.append(part.name)

    async def remove(self, name: str) -> None:
        del self.parts[name]


async def test_a_worker_that_was_given_up_counts_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def joined(self: Scaling, names: list[str], say: Say) -> None: ...

    monkeypatch.setattr(Scaling, "_joined", joined)
    plan = planned(tmp_path)
    supervisor = GivenUpLater(plan)
    scaling = Scaling(FREE, plan, supervisor)  # type: ignore[arg-type]
    done = await scaling.answer({"scale": {"rollout": 2}}, print)
    assert done == {"rollout": 2, "joined": ["rollout-1"], "left": []}
    assert supervisor.added == ["rollout-1"]


def test_workers_that_the_memory_does_not_hold_are_refused_with_the_figures() -> None:
    used = {"rollout-0": 7 * GIB, "rollout-1": 6 * GIB}
    require_memory(1, used, 7 * GIB)
    with pytest.raises(
        LaunchError,
        match=r"2 more workers would need about 14\.0 GiB \(rollout-0 uses 7\.0\), and 11\.0 GiB",
    ):
        require_memory(2, used, 11 * GIB)


def test_memory_is_required_only_for_new_workers_of_known_size() -> None:
    require_memory(0, {"rollout-0": 7 * GIB}, 0)
    require_memory(3, {}, 0)


def test_a_worker_that_shares_cores_is_warned_of(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    assert plan.workers is not None
    first = next(part for part in plan.parts if part.name == "rollout-0")
    second = plan.workers.part(1, 2, [first])
    assert shared_cores(second, [first]).startswith(
        "warning: rollout-1 shares core 0 with rollout-0"
    )
    assert shared_cores(first, []) == ""


def test_workers_that_start_in_turn_may_take_as_long_as_all_their_starts() -> None:
    config = {"rollout": {"vllm": {"startup_seconds": 100.0}}}
    run = RunRecord(
        id="r",
        name="r",
        kind="rl",
        pool="default",
        config=config,
        state=RunState.RUNNING,
        created=0.0,
    )

    assert patience(None, 3) == HEARD_WITHIN
    assert patience(run, 1) == HEARD_WITHIN + 100
    assert patience(run, 3) == HEARD_WITHIN + 300
