"""Groups past their deadline, and weights that change during requests: whole runs with a slow
scripted stand-in for vLLM."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.cli.client import Gateway
from services.launch import Stack, UpOptions
from tests.integration.installation.conftest import SCRIPTED, Installation

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
        environment=SCRIPTED | {"HEADRACE_SCRIPTED_VLLM": SCRIPT},
        grace=5,
    )
    with Stack(options) as stack:
        one = Installation(stack, Gateway(stack.gateway_url, stack.check, stack.api_key))
        one.add("sums", [{"prompt": f"{n}+1", "answer": str(n + 1)} for n in range(ROWS)])
        training = {"max_steps": 3, "rows_per_step": 8}
        run, _ = one.ended(one.submit("demo_sft", training=training, data={"dataset": "sums"}))
        assert run["state"] == "succeeded", run["reason"]
        one.model = f"run:{run['id']}"
        yield one


def test_a_straggler_is_completed_with_its_tokens_at_the_deadline(slow: Installation) -> None:
    rollout = {"straggler_deadline": 1.0, "at_deadline": "complete"}
    run, events = slow.ended(slow.submit(**COMMON, rollout=rollout))

    assert (run["state"], run["reason"]) == ("succeeded", "")
    steps = [event.data for event in events if event.kind == "step"]
    assert len(steps) == 2
    for step in steps:
        assert 0 < step["response/tokens_mean"] < LENGTH
        assert step["response/truncated"] == 1
    audit = slow.api.get(f"/v1/runs/{run['id']}/audit")
    assert (audit["lost"], audit["duplicated"]) == (0, 0)


def test_a_run_whose_prompts_all_miss_the_deadline_fails_with_the_reason(
    slow: Installation,
) -> None:
    rollout = {"straggler_deadline": 0.5, "at_deadline": "release"}
    run, events = slow.ended(slow.submit(**COMMON, rollout=rollout))

    assert run["state"] == "failed"
    assert (
        "no group is finished in time (rollout.straggler_deadline), e.g. dataset row "
        in run["reason"]
    )
    warnings = [event.data["message"] for event in events if event.kind == "warning"]
    assert any(text.startswith("a prompt is sampled again: dataset row ") for text in warnings)
    audit = slow.api.get(f"/v1/runs/{run['id']}/audit")
    assert (audit["lost"], audit["duplicated"]) == (0, 0)
    assert set(audit["dropped"]) <= {"too_slow"}


@pytest.mark.parametrize("mode", ["keep", "abort", "wait"])
def test_a_run_loses_nothing_in_any_update_mode(slow: Installation, mode: str) -> None:
    rollout = {"update_mode": mode, "max_staleness": 3}
    training = {"max_steps": 4, "checkpoint_every": 2}
    run, events = slow.ended(slow.submit(**COMMON, rollout=rollout, training=training))

    assert (run["state"], run["reason"]) == ("succeeded", "")
    steps = [event.data for event in events if event.kind == "step"]
    assert [step["response/tokens_mean"] for step in steps] == [LENGTH] * 4
    audit = slow.api.get(f"/v1/runs/{run['id']}/audit")
    assert (audit["lost"], audit["duplicated"], audit["trained"]) == (0, 0, 16)
    assert audit["max_staleness_seen"] <= 3
