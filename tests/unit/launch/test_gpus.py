"""How `headrace up` divides made-up GPUs between a learner and rollout workers."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from services.launch import LaunchError, UpOptions
from services.launch.gpus import GPUPlan, UpGPUSettings, plan_gpus
from services.launch.plan import Plan, make_plan
from services.launch.scaling import number_of_workers
from services.runtime.gpus import GPU

FOUR = [GPU(str(n), f"GPU-{n}") for n in range(4)]


def divided(visible: Sequence[GPU], ranks: int, rollouts: int = 1, **settings: Any) -> GPUPlan:
    given = UpGPUSettings(**settings)
    plan = plan_gpus(visible, ranks, rollouts, given, Path("/data/gpu-locks"))
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
    names = ("GPU_LOCKS", "LEARNER_GPUS", "GPUS_PER_WORKER", "VLLM_GPU_MEMORY_UTILIZATION")
    for name in (*names, "REWARD_GPUS", "REWARD_MODELS"):
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


def test_the_learner_gets_the_first_gpu_that_is_visible() -> None:
    assert divided([FOUR[3], FOUR[1]], ranks=1).learner_environment()["CUDA_VISIBLE_DEVICES"] == "3"


def test_more_workers_than_gpus_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="3 rollout workers, each with a GPU of its own") as said:
        planned(tmp_path, FOUR[:3], rollouts=3)

    assert "the GPUs here (0, 1, 2) the learner has 0, so there is room for 2" in str(said.value)
    assert planned(tmp_path, FOUR[:3], rollouts=2).workers is not None


def test_a_learner_with_all_gpus_leaves_none_to_a_worker(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"1 rollout worker, .* so there is room for 0"):
        planned(tmp_path, FOUR[:2], ranks=2)


def test_scaling_to_more_workers_than_gpus_is_refused(tmp_path: Path) -> None:
    plan = planned(tmp_path, FOUR)
    assert plan.workers is not None

    assert number_of_workers({"scale": {"rollout": 3}}, plan) == 3
    with pytest.raises(LaunchError, match=r"4 rollout workers, .* room for 3"):
        number_of_workers({"scale": {"rollout": 4}}, plan)
    first = next(part for part in plan.parts if part.name == "rollout-0")
    assert plan.workers.part(1, 2, [first]).environment == first.environment


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
    assert plan.workers is not None
    second = plan.workers.part(1, 2, [plan.parts[-2]])
    assert second.environment["HEADRACE_VLLM_GPU_MEMORY_UTILIZATION"] == "0.200"


def test_vllm_takes_most_of_a_single_gpu_if_no_learner_runs() -> None:
    plan = divided(FOUR[:1], ranks=0)
    assert plan.rollout_environment(1) == {"HEADRACE_VLLM_GPU_MEMORY_UTILIZATION": "0.900"}


def test_without_a_gpu_nothing_is_set(tmp_path: Path) -> None:
    plan = planned(tmp_path, [])

    assert "HEADRACE_GPU_LOCKS" not in environment(plan, "rollout-0")
    assert "CUDA_VISIBLE_DEVICES" not in environment(plan, "learner")


def test_a_learner_by_itself_sees_all_gpus(tmp_path: Path) -> None:
    alone = planned(tmp_path, FOUR, parts=frozenset({"learner"}), redis_url="redis://r/0")
    assert "CUDA_VISIBLE_DEVICES" not in environment(alone, "learner")


def test_the_operators_variables_divide_the_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


MODELS = ["rm=/models/rm", "far=http://rm:8000", "orm=/models/orm"]


def test_reward_models_get_the_last_gpus_that_workers_and_learner_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_REWARD_MODELS", json.dumps(MODELS))

    plan = planned(tmp_path, FOUR)

    assert environment(plan, "reward")["HEADRACE_REWARD_GPUS"] == "2,3"
    assert environment(plan, "learner")["CUDA_VISIBLE_DEVICES"] == "0"
    assert environment(plan, "rollout-0")["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert environment(plan, "rollout-0")["HEADRACE_LEARNER_GPUS"] == "0"
    assert plan.workers is not None
    with pytest.raises(LaunchError, match=r"reward models have 2, 3, so there is room for 1\b"):
        plan.workers.refuse(2)


def test_reward_models_share_one_gpu_where_workers_leave_one() -> None:
    plan = divided(FOUR, ranks=1, rollouts=2, reward_models=MODELS)
    assert plan.reward == (FOUR[3],)
    assert plan.workers == (FOUR[1], FOUR[2])


def test_reward_models_share_a_workers_gpu_rather_than_the_learners() -> None:
    plan = divided(FOUR, ranks=1, rollouts=3, reward_models=MODELS)
    plan.refuse(3)
    assert plan.reward_environment() == {"HEADRACE_REWARD_GPUS": "3"}
    assert "CUDA_VISIBLE_DEVICES" not in plan.rollout_environment(3)


def test_a_worker_leaves_memory_to_reward_models_where_all_workers_have_to_share() -> None:
    plan = divided(FOUR[:2], ranks=1, rollouts=1, reward_models=MODELS)
    plan.refuse(1)
    assert plan.reward_environment() == {"HEADRACE_REWARD_GPUS": "1"}
    assert plan.rollout_environment(1)["HEADRACE_VLLM_GPU_MEMORY_UTILIZATION"] == "0.400"


def test_reward_models_that_are_served_elsewhere_need_no_gpu() -> None:
    assert divided(FOUR, ranks=1, reward_models=["far=http://rm:8000"]).reward == ()


def test_the_operator_names_the_gpus_of_reward_models() -> None:
    plan = divided(FOUR, ranks=1, reward_models=MODELS, reward_gpus="1")
    assert (plan.reward, plan.workers) == ((FOUR[1],), (FOUR[2], FOUR[3]))
    with pytest.raises(LaunchError, match="HEADRACE_REWARD_GPUS=9 names none of those"):
        divided(FOUR, ranks=1, reward_models=MODELS, reward_gpus="9")


def test_more_gpus_for_one_worker_than_there_are_is_refused_on_one_gpu_too() -> None:
    with pytest.raises(LaunchError, match=r"1 rollout worker, each with 2 GPUs .* room for 0"):
        divided(FOUR[:1], ranks=1, gpus_per_worker=2).refuse(1)
