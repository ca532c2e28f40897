"""What `headrace scale` may ask of a running installation, and where a new worker computes."""

from pathlib import Path
from typing import Any

import pytest

from services.launch import LaunchError, UpOptions
from services.launch.cores import plan_cores
from services.launch.plan import Plan, make_plan
from services.launch.scaling import number_of_workers

FREE = UpOptions(port=0, reward_port=0, redis_port=0)


def planned(data: Path, **options: Any) -> Plan:
    given = UpOptions(**{"port": 0, "reward_port": 0, "redis_port": 0, **options})
    return make_plan(given, data, place=lambda r, k: plan_cores([(0,), (1,), (2,), (3,)], r, k))


@pytest.mark.parametrize("asked", [-1, 257, "2", None, True, 1.5])
def test_only_a_sensible_number_of_workers_is_granted(tmp_path: Path, asked: Any) -> None:
    with pytest.raises(LaunchError, match="the number of workers on this machine is from 0 to 256"):
        number_of_workers({"scale": {"rollout": asked}}, planned(tmp_path), FREE)


def test_an_installation_that_was_asked_for_none_gets_none(tmp_path: Path) -> None:
    without = planned(tmp_path, parts=frozenset({"redis", "gateway"}))
    with pytest.raises(LaunchError, match="started without rollout workers"):
        number_of_workers({"scale": {"rollout": 1}}, without, FREE)
    none_yet = planned(tmp_path, rollouts=0)
    assert number_of_workers({"scale": {"rollout": 1}}, none_yet, FREE) == 1


def test_a_worker_that_joins_is_started_like_the_first_on_cores_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND", raising=False)
    plan = planned(tmp_path)
    assert plan.crew is not None
    first = next(part for part in plan.parts if part.name == "rollout-0")
    second = plan.crew.joining(1, [first], 2)
    assert (second.name, second.argv, second.stage) == ("rollout-1", first.argv, first.stage)
    assert first.environment["VLLM_CPU_OMP_THREADS_BIND"] == "0,1"
    assert second.environment["VLLM_CPU_OMP_THREADS_BIND"] == "0"
    third = plan.crew.joining(2, [first, second], 3)
    assert third.environment["VLLM_CPU_OMP_THREADS_BIND"] == "1"
    assert {**first.environment, "VLLM_CPU_OMP_THREADS_BIND": "0"} == second.environment
