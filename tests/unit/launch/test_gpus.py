"""How `headrace up` divides made-up GPUs between a learner and rollout workers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from services.gpus import GPU, GPUSettings
from services.launch import LaunchError, UpOptions
from services.launch.gpus import GPUPlan, plan_gpus
from services.launch.plan import Plan, make_plan
from services.launch.scaling import number_of_workers

FOUR = [GPU(str(n), f"GPU-{n}") for n in range(4)]


def divided(visible: Sequence[GPU], ranks: int, **settings: Any) -> GPUPlan:
    plan = plan_gpus(visible, ranks, GPUSettings(**settings), Path("/data/gpu-locks"))
    assert plan is not None
    return plan


def planned(data: Path, visible: Sequence[GPU], **options: Any) -> Plan:
    given = UpOptions(**{"port": 0, "reward_port": 0, "redis_port": 0, **options})
    return make_plan(
        given, data, place=lambda rollouts, ranks: None, devices=lambda environment: visible
    )


def environment(plan: Plan, name: str) -> dict[str, str]:
    return dict(next(part for part in plan.parts if part.name == name).environment)


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GPU_LOCKS", "LEARNER_GPUS", "GPUS_PER_WORKER", "VLLM_GPU_MEMORY_UTILIZATION"):
        monkeypatch.delenv(f"HEADRACE_{name}", raising=False)


def test_the_learner_gets_the_first_gpus_and_workers_lock_some_of_the_rest(tmp_path: Path) -> None:
    plan = planned(tmp_path, FOUR, ranks=2, rollouts=2)

    learner = environment(plan, "learner")
    assert learner["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert learner["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    for name in ("rollout-0", "rollout-1"):
        worker = environment(plan, name)
        assert worker["HEADRACE_GPU_LOCKS"] == str(tmp_path / "gpu-locks")
        assert worker["HEADRACE_LEARNER_GPUS"] == "0,1"
        assert "HEADRACE_VLLM_GPU_MEMORY_UTILIZATION" not in worker


def test_first_is_first_among_those_that_are_shown() -> None:
    assert divided([FOUR[3], FOUR[1]], ranks=1).learner_environment()["CUDA_VISIBLE_DEVICES"] == "3"


def test_more_workers_than_gpus_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="3 rollout workers, each with a GPU of its own") as said:
        planned(tmp_path, FOUR[:3], rollouts=3)

    assert "the GPUs here (0, 1, 2) the learner has 0, so there is room for 2" in str(said.value)
    assert planned(tmp_path, FOUR[:3], rollouts=2).crew is not None


def test_a_learner_with_all_gpus_leaves_none_to_a_worker(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"1 rollout worker, .* so there is room for 0"):
        planned(tmp_path, FOUR[:2], ranks=2)


def test_scaling_follows_the_same_rule(tmp_path: Path) -> None:
    plan = planned(tmp_path, FOUR)
    assert plan.crew is not None

    assert number_of_workers({"scale": {"rollout": 3}}, plan, UpOptions()) == 3
    with pytest.raises(LaunchError, match=r"4 rollout workers, .* room for 3"):
        number_of_workers({"scale": {"rollout": 4}}, plan, UpOptions())
    first = next(part for part in plan.parts if part.name == "rollout-0")
    assert plan.crew.joining(1, [first], 2).environment == first.environment


def test_a_worker_with_several_gpus_counts_for_several() -> None:
    plan = divided(FOUR, ranks=1, gpus_per_worker=2)

    plan.refuse(1)
    with pytest.raises(LaunchError, match=r"each with 2 GPUs of its own.* room for 1\b"):
        plan.refuse(2)


def test_on_one_gpu_everything_shares_it_and_vllm_leaves_room(tmp_path: Path) -> None:
    plan = planned(tmp_path, FOUR[:1])

    worker = environment(plan, "rollout-0")
    assert worker["HEADRACE_VLLM_GPU_MEMORY_UTILIZATION"] == "0.400"
    assert "HEADRACE_GPU_LOCKS" not in worker
    assert "CUDA_VISIBLE_DEVICES" not in environment(plan, "learner")
    assert plan.crew is not None
    second = plan.crew.joining(1, [plan.parts[-2]], 2)
    assert second.environment["HEADRACE_VLLM_GPU_MEMORY_UTILIZATION"] == "0.200"


def test_one_gpu_without_a_learner_is_vllms() -> None:
    plan = divided(FOUR[:1], ranks=0)
    assert plan.rollout_environment(1) == {"HEADRACE_VLLM_GPU_MEMORY_UTILIZATION": "0.900"}


def test_without_a_gpu_nothing_is_set(tmp_path: Path) -> None:
    plan = planned(tmp_path, [])

    assert "HEADRACE_GPU_LOCKS" not in environment(plan, "rollout-0")
    assert "CUDA_VISIBLE_DEVICES" not in environment(plan, "learner")


def test_a_learner_by_itself_sees_all_gpus(tmp_path: Path) -> None:
    alone = planned(tmp_path, FOUR, parts=frozenset({"learner"}), redis_url="redis://r/0")
    assert "CUDA_VISIBLE_DEVICES" not in environment(alone, "learner")


def test_what_the_operator_says_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_GPU_LOCKS", "/run/locks")
    monkeypatch.setenv("HEADRACE_LEARNER_GPUS", "GPU-2,3")

    plan = planned(tmp_path, FOUR, rollouts=2)

    assert environment(plan, "learner")["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert environment(plan, "rollout-1")["HEADRACE_GPU_LOCKS"] == "/run/locks"
    assert environment(plan, "rollout-1")["HEADRACE_LEARNER_GPUS"] == "2,3"


def test_a_share_of_memory_that_the_operator_names_is_left_as_it_is() -> None:
    own = divided(FOUR[:1], ranks=1, vllm_gpu_memory_utilization=0.7)
    assert own.rollout_environment(1) == {}


def test_a_learner_without_gpus_enough_is_refused() -> None:
    with pytest.raises(LaunchError, match=r"--ranks 2: .* there are 1 of those .* sees \(0\)"):
        divided(FOUR[:1], ranks=2)
    with pytest.raises(LaunchError, match="HEADRACE_LEARNER_GPUS=3 names 1 of those"):
        divided(FOUR, ranks=2, learner_gpus="3")
    with pytest.raises(LaunchError, match="HEADRACE_LEARNER_GPUS=7 names none of those"):
        divided(FOUR, ranks=1, learner_gpus="7")
