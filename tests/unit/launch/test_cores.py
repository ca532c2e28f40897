"""The cores of a host are shared out. Worked out by hand for machines from one core to sixteen."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.launch.cores import CorePlan, bound_to, cores_here, has_accelerator, plan_cores


def machine(count: int) -> list[int]:
    return list(range(count))


def test_two_cores_give_one_to_generation_and_one_to_training() -> None:
    plan = plan_cores(machine(2), rollouts=1, ranks=1)
    assert plan.rollouts == ((0,),)
    assert plan.ranks == ((1,),)


def test_one_core_is_shared() -> None:
    plan = plan_cores(machine(1), rollouts=1, ranks=2)
    assert plan.rollouts == ((0,),)
    assert plan.ranks == ((0,), (0,))


def test_two_ranks_on_two_cores_leave_the_engine_its_own() -> None:
    plan = plan_cores(machine(2), rollouts=1, ranks=2)
    assert plan.rollouts == ((0,),)
    assert plan.ranks == ((1,), (1,))


def test_the_last_core_belongs_to_nobody_and_the_odd_one_to_generation() -> None:
    assert plan_cores(machine(4), 1, 1).rollouts == ((0, 1),)
    assert plan_cores(machine(4), 1, 1).ranks == ((2,),)
    assert plan_cores(machine(8), 1, 1).rollouts == ((0, 1, 2, 3),)
    assert plan_cores(machine(8), 1, 1).ranks == ((4, 5, 6),)


def test_several_engines_and_ranks_get_contiguous_shares() -> None:
    plan = plan_cores(machine(8), rollouts=2, ranks=2)
    assert plan.rollouts == ((0, 1), (2, 3))
    assert plan.ranks == ((4,), (5, 6))


def test_only_a_side_that_runs_gets_cores() -> None:
    assert plan_cores(machine(2), rollouts=0, ranks=1).ranks == ((0, 1),)
    assert plan_cores(machine(2), rollouts=1, ranks=0).rollouts == ((0, 1),)


def test_no_cores_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one core"):
        plan_cores([], 1, 1)


@given(count=st.integers(2, 64), rollouts=st.integers(1, 4), ranks=st.integers(1, 4))
def test_engines_and_ranks_never_share_and_all_get_something(
    count: int, rollouts: int, ranks: int
) -> None:
    plan = plan_cores(machine(count), rollouts, ranks)
    generating = {id_ for cores in plan.rollouts for id_ in cores}
    training = {id_ for cores in plan.ranks for id_ in cores}
    assert len(plan.rollouts) == rollouts
    assert len(plan.ranks) == ranks
    assert all(plan.rollouts)
    assert all(plan.ranks)
    assert not generating & training
    assert generating | training <= set(range(count))


def test_uneven_ranks_run_with_the_threads_the_smallest_has() -> None:
    assert plan_cores(machine(8), 1, 1).learner_environment() == {"OMP_NUM_THREADS": "3"}
    assert plan_cores(machine(8), 2, 2).learner_environment() == {"OMP_NUM_THREADS": "1"}


def test_vllm_is_bound_to_its_cores_and_its_threads_that_wait_soon_sleep() -> None:
    bound = bound_to((0, 1, 2))
    assert bound == {"VLLM_CPU_OMP_THREADS_BIND": "0,1,2", "GOMP_SPINCOUNT": "1000"}


def test_cores_here_are_allowed_ones_and_all_of_them_where_parts_need_more() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    assert set(cores_here(1)) <= set(allowed)
    assert cores_here(10_000) == allowed


def test_a_worker_that_joins_gets_an_even_share_of_the_cores_that_fewest_hold() -> None:
    plan = CorePlan(generating=(0, 1, 2, 3), rollouts=(), ranks=())
    four = (0, 1, 2, 3)
    assert plan.joining([four], 2) == (0, 1)
    assert plan.joining([four, (0, 1)], 3) == (2,)
    assert plan.joining([(0, 1)], 2) == (2, 3)
    assert plan.joining([], 1) == four
    assert CorePlan((0,), (), ()).joining([(0,), (0,)], 3) == (0,)


def test_workers_join_where_generation_was_planned_and_else_anywhere() -> None:
    assert plan_cores(machine(4), 1, 1).generating == (0, 1)
    assert plan_cores(machine(4), 0, 1).generating == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("device", "variable", "hiding", "showing"),
    [
        ("nvidia0", "CUDA_VISIBLE_DEVICES", ("", "-1", "-1,0"), ("0", "GPU-1", "0,-1")),
        ("kfd", "CUDA_VISIBLE_DEVICES", ("", "-1"), ("0",)),
        ("kfd", "HIP_VISIBLE_DEVICES", ("", "-1"), ("0",)),
        ("kfd", "ROCR_VISIBLE_DEVICES", ("", "-1"), ("0", "GPU-1")),
        ("nvidia0", "HIP_VISIBLE_DEVICES", (), ("", "-1")),
    ],
)
def test_an_accelerator_counts_unless_its_variable_hides_it(
    device: str,
    variable: str,
    hiding: tuple[str, ...],
    showing: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("CUDA", "HIP", "ROCR"):
        monkeypatch.delenv(f"{name}_VISIBLE_DEVICES", raising=False)
    assert not has_accelerator(tmp_path)
    (tmp_path / device).touch()
    assert has_accelerator(tmp_path)
    for value in (*hiding, *showing):
        monkeypatch.setenv(variable, value)
        assert has_accelerator(tmp_path) == (value in showing), value
