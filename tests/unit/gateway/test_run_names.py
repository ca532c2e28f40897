"""The run that a name, or the beginning of an id, means."""

import pytest

from services.contracts.records import RunState, RunSummary
from services.gateway.run_names import meant_id
from services.http import Problem


def run(id: str, name: str, state: str = "failed", resume_from: str | None = None) -> RunSummary:
    return RunSummary(
        id=id, name=name, pool="p", kind="rl", state=RunState(state), created=0.0,
        resume_from=resume_from,
    )  # fmt: skip


def test_a_name_means_the_only_run_that_has_it() -> None:
    runs = [run("b1", "grpo", "queued"), run("a1", "grpo"), run("a2", "mine")]
    assert meant_id("run", "mine", runs) == "a2"
    assert meant_id("run", "b", runs) == "b1"
    time = "1970-01-01 00:00:00 UTC"
    for reference, what, listed in (
        ("grpo", "are called", f"b1 (queued, {time}), a1 (failed, {time})"),
        ("a", "have ids that begin with", f"a1 (failed, {time}), a2 (failed, {time})"),
    ):
        with pytest.raises(Problem) as raised:
            meant_id("run", reference, runs)
        assert raised.value.status == 409
        assert raised.value.detail.startswith(
            f"2 runs {what} {reference!r}: name one by its id: {listed}"
        )


def test_a_resumed_run_answers_to_the_name_of_the_run_that_it_continues() -> None:
    runs = [run("c", "grpo", resume_from="b"), run("b", "grpo", resume_from="a")]
    assert meant_id("run", "grpo", [*runs, run("a", "grpo")]) == "c"
    # Two runs that continue the same one are two again.
    with pytest.raises(Problem, match="2 runs are called"):
        meant_id("run", "grpo", [run("d", "grpo", resume_from="b"), *runs])
    # A fork leaves the run its name.
    fork = run("e", "mine", resume_from="a").model_copy(update={"is_fork": True})
    with pytest.raises(Problem, match="2 runs are called"):
        meant_id("run", "mine", [fork, run("a", "mine")])
