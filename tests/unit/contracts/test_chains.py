"""A chain's record and the run of its present step decide its next action."""

import pytest

from services.contracts.chains import (
    ChainRecord,
    ChainState,
    ChainStep,
    advanced,
    cancelling,
    references,
    referred,
    resumed,
    viewed,
    with_paths,
)
from services.contracts.records import RunState, RunSummary

NOW = 9.0


def chain(**fields: object) -> ChainRecord:
    steps = [ChainStep(name=name, config={}, runs=[f"run-{name}"]) for name in ("sft", "rl")]
    given = {"id": "chain-1", "name": "sums", "pool": "default", "created": 1.0, "steps": steps}
    return ChainRecord.model_validate(given | fields)


def run(state: str, **fields: object) -> RunSummary:
    given = {"id": "run-sft", "name": "a", "pool": "default", "kind": "sft", "created": 1.0}
    return RunSummary.model_validate(given | {"state": state} | fields)


@pytest.mark.parametrize("state", ["queued", "starting", "running", "paused", "cancelling"])
def test_a_chain_waits_for_a_run_that_is_not_over(state: str) -> None:
    assert advanced(chain(), run(state), NOW) == chain()
    asked = cancelling(chain())
    assert advanced(asked, run(state), NOW) == asked


def test_a_chain_waits_for_a_run_that_is_not_written_yet() -> None:
    assert advanced(chain(), None, NOW) == chain()


def test_each_success_begins_the_next_step_and_the_last_one_ends_the_chain() -> None:
    second = advanced(chain(), run("succeeded"), NOW)
    assert (second.at, second.state, second.finished) == (1, ChainState.RUNNING, None)
    over = advanced(second, run("succeeded"), NOW)
    assert (over.at, over.state, over.reason, over.finished) == (1, "succeeded", "", NOW)
    assert advanced(over, run("failed"), 10.0) == over


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_a_step_that_does_not_succeed_ends_the_chain_with_its_reason(state: str) -> None:
    over = advanced(chain(), run(state, reason="the disk is full"), NOW)
    assert (over.state, over.reason, over.at) == (state, "step sft: the disk is full", 0)


def test_a_chain_that_is_cancelled_ends_with_its_run_or_before_that_began() -> None:
    asked = cancelling(chain())
    before = advanced(asked, None, NOW)
    assert (before.state, before.reason) == ("cancelled", "step sft: on request, before it began")
    # The run may have succeeded meanwhile: no later step begins all the same.
    after = advanced(asked, run("succeeded"), NOW)
    assert (after.state, after.reason, after.at) == (
        "cancelled",
        "step sft: on request, after it ended",
        0,
    )
    assert cancelling(after) == after


def test_only_a_chain_that_failed_or_was_cancelled_goes_on_with_the_same_step() -> None:
    failed = advanced(chain(), run("failed", reason="x"), NOW)
    again = resumed(failed, {"a": 1}, "run-2")
    assert (again.state, again.reason, again.finished, again.at) == ("running", "", None, 0)
    assert again.step.runs == ["run-sft", "run-2"]
    assert again.step.run == "run-2"
    assert again.step.config == {"a": 1}
    assert again.steps[1] == chain().steps[1]
    for other in (chain(), cancelling(chain()), chain(state="succeeded")):
        assert resumed(other, {}, "run-2") == other


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("step:sft", ("sft", "last")),
        ("step:sft@best", ("sft", "best")),
        ("step:sft@20", ("sft", "20")),
        ("step:sft@first", None),
        ("run:sft", None),
        (7, None),
    ],
)
def test_a_model_may_be_what_an_earlier_step_makes(
    path: object, meant: tuple[str, str] | None
) -> None:
    assert referred(path) == meant


@pytest.mark.parametrize("other", ["critic", "teacher"])
def test_policy_and_critic_or_teacher_may_start_from_a_step(other: str) -> None:
    config = {
        "model": {"path": "step:a", "dtype": "auto"},
        "algorithm": {other: {"path": "step:b"}, "loss": {}},
    }
    paths = references(config)
    assert paths == {"model.path": "step:a", f"algorithm.{other}.path": "step:b"}
    resolved = with_paths(config, dict.fromkeys(paths, "run:x@1"))
    assert resolved["model"] == {"path": "run:x@1", "dtype": "auto"}
    assert resolved["algorithm"] == {other: {"path": "run:x@1"}, "loss": {}}
    assert references({"model": {"source": "scratch"}}) == {}
    reference = {"algorithm": {"kl": {"type": "k2", "reference": {"path": "step:a"}}}}
    assert with_paths(reference, dict.fromkeys(references(reference), "run:x")) == {
        "algorithm": {"kl": {"type": "k2", "reference": {"path": "run:x"}}}
    }
    assert config["model"] == {"path": "step:a", "dtype": "auto"}


def test_a_view_says_what_each_step_waits_for_or_does() -> None:
    steps = viewed(chain(at=1), {"run-sft": run(RunState.SUCCEEDED, step=3, max_steps=3)}).steps
    assert [(step.state, step.run, step.step) for step in steps] == [
        ("succeeded", "run-sft", 3),
        ("waiting", None, 0),
    ]
