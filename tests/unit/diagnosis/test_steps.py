"""Diagnoses from the last step's figures: one situation, one cause, one sentence."""

import pytest

from services.contracts.records import HostLoad
from services.contracts.why import (
    Flow,
)
from services.diagnosis.workers import GIB
from tests.unit.diagnosis.situations import said, step, worker


def test_the_last_step_names_the_side_that_waited() -> None:
    waiting = {"bottleneck": "rollout", "time/waiting_for_groups": 3.0}
    assert said(events=[step(2, **waiting)])[1].startswith(
        "the learner waits for groups: step 7 took 4.0 s, 3.0 s of it without enough of them"
    )
    admission = {"bottleneck": "learner", "time/workers_waiting_for_admission": 1.5}
    cause, words = said(events=[step(2, **admission)])
    assert cause == "learner"
    assert "workers waited 1.5 s for admission" in words
    assert said(events=[step(2)]) == (
        "none",
        "nothing holds it up: step 7 took 4.0 s, and neither side waited for the other",
    )


def load(idle_cores: float, free_gib: float, worker_gib: float = 7) -> HostLoad:
    return HostLoad(
        cores=4,
        idle_cores=idle_cores,
        free_memory=int(free_gib * GIB),
        memory=int(worker_gib * GIB),
    )


@pytest.mark.parametrize(
    ("hosts", "advice"),
    [
        (
            {"a": load(0.1, 40)},
            "No host has room for another worker (a: 0.1 of 4 cores idle, 40.0 GiB free, and a "
            "worker uses 7.0): a worker on another machine helps, or a higher "
            "rollout.max_staleness",
        ),
        (
            {"a": load(3, 4)},
            "No host has room for another worker (a: 3.0 of 4 cores idle, 4.0 GiB free, and a "
            "worker uses 7.0): a worker on another machine helps, or a higher "
            "rollout.max_staleness",
        ),
        (
            {"a": load(0, 1), "b": load(2, 8)},
            "Another worker helps, there is room for it (b: 2.0 of 4 cores idle, 8.0 GiB free, and "
            "a worker uses 7.0); or a higher rollout.max_staleness",
        ),
        ({"a": None}, "More workers help, or a higher rollout.max_staleness"),
    ],
    ids=["no idle core", "no memory", "room on one of two hosts", "GPUs"],
)
def test_more_workers_are_recommended_only_where_cores_and_memory_are_free(
    hosts: dict[str, HostLoad | None], advice: str
) -> None:
    workers = [worker(host, host=host, host_load=load) for host, load in hosts.items()]
    _, words = said(workers=workers, events=[step(2, bottleneck="rollout")])
    assert words.endswith(f"without enough of them. {advice}")


def test_a_long_step_is_not_a_standstill_before_three_of_its_like() -> None:
    assert said(events=[step(59, **{"time/step": 20.0})])[0] == "none"
    assert said(events=[step(61, **{"time/step": 20.0})])[0] == "rollout"


def test_groups_that_were_filtered_are_named_where_the_learner_waits() -> None:
    waiting = {"bottleneck": "rollout", "time/waiting_for_groups": 3.0}
    words = said(events=[step(2, **waiting, **{"reward/groups_filtered": 0.625})])[1]
    assert "3.0 s of it without enough of them, 62% of all groups were filtered. More" in words
    words = said(workers=[worker(state="generating")], events=[step(40)], flow=Flow(filtered=9))[1]
    assert words.startswith(
        "the learner waits for groups (0 of 4 are there, 9 were filtered for equal "
        "rewards), for 40 s now: "
    )
