"""Groups that run past their deadline, and weights that change under requests: whole runs with
the scripted stand-in for vLLM, slowed down."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from services.cli.client import Gateway
from services.launch import Stack, UpOptions
from tests.integration.installation.conftest import SCRIPTED, Installation

pytestmark = pytest.mark.timeout(240)

# A whole completion takes 3 s.
LENGTH, PER_SECOND = 30, 10
SCRIPT = json.dumps({"vocabulary": 20, "tokens_per_second": PER_SECOND})
COMMON: dict[str, Any] = {
    "data": {"dataset": "sums"},
    "sampling": {"max_tokens": LENGTH, "ignore_eos": True},
}
ROWS = 6


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    options = UpOptions(
        data=tmp_path_factory.mktemp("slow"),
        port=0,
        reward_port=0,
        redis_port=0,
        environment=SCRIPTED | {"HEADRACE_SCRIPTED_VLLM": SCRIPT},
        grace=5,
    )
    with Stack(options) as stack:
        one = Installation(stack, Gateway(stack.gateway_url, still_there=stack.check))
        one.add("sums", [{"prompt": f"{n}+1", "answer": str(n + 1)} for n in range(ROWS)])
        training = {"max_steps": 3, "rows_per_step": 8}
        run, _ = one.ended(one.submit("demo_midtrain", training=training, data={"dataset": "sums"}))
        assert run["state"] == "succeeded", run["reason"]
        one.model = f"run:{run['id']}"
        yield one


def test_a_straggler_is_completed_with_what_is_done(slow: Installation) -> None:
    rollout = {"straggler_deadline": 1.0, "straggler": "complete"}
    run, events = slow.ended(slow.submit(**COMMON, rollout=rollout))

    assert (run["state"], run["reason"]) == ("succeeded", "")
    steps = [event.data for event in events if event.kind == "step"]
    assert len(steps) == 2
    for step in steps:
        assert 0 < step["response/tokens_mean"] < LENGTH
        assert step["response/without_end"] == 1
    audit = slow.api.get(f"/v1/runs/{run['id']}/audit")
    assert (audit["lost"], audit["duplicated"]) == (0, 0)


def test_prompts_that_are_never_done_in_time_are_given_back_and_the_run_says_so(
    slow: Installation,
) -> None:
    rollout = {"straggler_deadline": 0.5, "straggler": "give_back"}
    run, events = slow.ended(slow.submit(**COMMON, rollout=rollout))

    assert run["state"] == "failed"
    assert "nothing is sampled in time: rollout.straggler_deadline is 0.5 s" in run["reason"]
    warnings = [event.data["message"] for event in events if event.kind == "warning"]
    assert any("a prompt goes out again: rollout.straggler_deadline" in text for text in warnings)
    audit = slow.api.get(f"/v1/runs/{run['id']}/audit")
    assert (audit["lost"], audit["duplicated"]) == (0, 0)
    assert set(audit["dropped"]) <= {"too_slow"}


@pytest.mark.parametrize("mode", ["keep", "abort", "wait"])
def test_a_run_is_whole_whatever_becomes_of_requests_at_an_update(
    slow: Installation, mode: str
) -> None:
    rollout = {"update_mode": mode, "max_staleness": 3}
    training = {"max_steps": 4, "checkpoint_every": 2}
    run, events = slow.ended(slow.submit(**COMMON, rollout=rollout, training=training))

    assert (run["state"], run["reason"]) == ("succeeded", "")
    steps = [event.data for event in events if event.kind == "step"]
    assert [step["response/tokens_mean"] for step in steps] == [LENGTH] * 4
    audit = slow.api.get(f"/v1/runs/{run['id']}/audit")
    assert (audit["lost"], audit["duplicated"], audit["trained"]) == (0, 0, 16)
    assert audit["max_staleness_seen"] <= 3
