"""The policy as an endpoint: which version and worker a model names, options, limits."""

from typing import Any

import pytest

from services.contracts.records import RunRecord, RunState, WorkerRecord
from services.gateway.openai.errors import SessionProblem
from services.gateway.policy.limits import OpenCalls
from services.gateway.policy.options import policy_call
from services.gateway.policy.served_models import Asked, names_of, parse_model, worker_for
from services.gateway.settings import GatewaySettings

ASKED = [{"role": "user", "content": "2+2"}]


def run(**fields: Any) -> RunRecord:
    given: dict[str, Any] = {"id": "r", "name": "sums", "pool": "default", "config": {}}
    given |= {"kind": "rl", "state": RunState.RUNNING, "lineage": "a", "created": 1.0}
    return RunRecord.model_construct(**{**given, **fields})


def worker(id: str, version: int | None, **fields: Any) -> WorkerRecord:
    given: dict[str, Any] = {"pool": "default", "host": "h", "pid": 1, "state": "generating"}
    given |= {"run": "r", "lineage": "a", "version": version}
    return WorkerRecord(id=id, **{**given, **fields})


def chosen(model: str, *workers: WorkerRecord, **calls: int) -> str:
    return worker_for(parse_model(model).version, run(), workers, calls).id


@pytest.mark.parametrize(
    ("model", "asked"),
    [
        ("sums", Asked("sums")),
        ("sums@latest", Asked("sums")),
        ("sums@12", Asked("sums", 12)),
        ("me@home", Asked("me@home")),
        ("me@home@3", Asked("me@home", 3)),
        ("@3", Asked("@3")),
    ],
)
def test_a_model_is_a_run_and_a_version(model: str, asked: Asked) -> None:
    assert parse_model(model) == asked


@pytest.mark.parametrize("model", [None, "", 3, ["r"]])
def test_a_request_without_a_model_learns_what_one_is(model: object) -> None:
    with pytest.raises(SessionProblem, match=r"RUN@STEP.*GET /v1/models"):
        parse_model(model)


def test_the_newest_version_answers_and_of_its_workers_the_least_busy() -> None:
    workers = [worker("old", 3), worker("one", 4), worker("two", 4)]
    assert chosen("r", *workers, one=2, two=1) == "two"
    assert chosen("r@3", *workers) == "old"
    assert names_of(run(), workers) == ["r", "r@4", "r@3"]


def test_versions_of_an_abandoned_lineage_are_not_the_runs() -> None:
    workers = [worker("before", 9, lineage="z"), worker("after", 5)]
    assert chosen("r@latest", *workers) == "after"
    assert names_of(run(), workers) == ["r", "r@5"]


@pytest.mark.parametrize(
    "absent",
    [
        worker("w", None),
        worker("w", 1, run="other"),
        worker("w", 1, state="silent"),
        worker("w", 1, state="stopping"),
    ],
)
def test_a_call_to_a_run_without_a_worker_is_to_be_retried_later(absent: WorkerRecord) -> None:
    with pytest.raises(SessionProblem, match="no worker serves it yet") as refused:
        chosen("r", absent)
    assert refused.value.status == 503
    assert refused.value.headers == {"Retry-After": "5"}
    assert names_of(run(), [absent]) == []


def test_a_run_that_is_over_says_what_serves_it() -> None:
    with pytest.raises(SessionProblem, match=r"headrace chat r.*headrace export r") as over:
        worker_for(None, run(state=RunState.SUCCEEDED), [], {})
    assert (over.value.status, over.value.code) == (404, "model_not_found")


def test_options_go_to_vllm_and_others_are_refused_by_name() -> None:
    body = {"messages": ASKED, "model": "r", "temperature": 0, "top_k": -1, "stop": "x", "n": 1}
    call = policy_call("chat", {**body, "max_tokens": 7, "stream": True, "user": None}, 4, 100)
    assert call.sampling == {"temperature": 0, "top_k": -1}
    assert (call.version, call.call.stop, call.call.max_tokens) == (4, ["x"], 7)
    assert policy_call("completions", {"prompt": [1, 2]}, None, 100).call.prompt == [1, 2]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("temperature", -1),
        ("temperature", "hot"),
        ("temperature", True),
        ("temperature", float("nan")),
        ("temperature", 10**400),
        ("top_p", 0),
        ("top_k", 1.5),
        ("presence_penalty", 3),
        ("repetition_penalty", 0),
        ("n", 2),
        ("logprobs", True),
        ("response_format", {"type": "json_object"}),
        ("tool_choice", "required"),
        ("guided_json", {}),
        ("max_tokens", 101),
        ("max_tokens", 0),
        ("seed", -1),
        ("stop", [1]),
        ("messages", []),
        ("messages", [{"role": "user", "content": [{"type": "image_url"}]}]),
    ],
)
def test_a_wrong_option_is_named(option: str, value: object) -> None:
    with pytest.raises(SessionProblem) as refused:
        policy_call("chat", {"messages": ASKED, option: value}, None, 100)
    assert refused.value.status == 400
    assert option in str(refused.value.param)


def test_a_format_is_refused_with_the_reason() -> None:
    body = {"messages": ASKED, "response_format": {"type": "json_object"}}
    with pytest.raises(SessionProblem, match="a weight update may interrupt an answer"):
        policy_call("chat", body, None, 100)


def test_a_key_that_calls_too_often_waits_and_others_do_not() -> None:
    calls = OpenCalls(GatewaySettings(policy_calls_a_minute=6))
    for _ in range(6):
        calls.admit("me", now=100.0)
    with pytest.raises(SessionProblem, match="6 calls of the policy within a minute") as refused:
        calls.admit("me", now=101.0)
    assert refused.value.status == 429
    assert refused.value.headers == {"Retry-After": "9"}
    calls.admit("other", now=101.0)
    calls.admit("me", now=110.5)
    with pytest.raises(SessionProblem):
        calls.admit("me", now=111.0)


def test_places_are_limited_and_returned() -> None:
    calls = OpenCalls(GatewaySettings(policy_calls=2))
    with calls.slot("a"), calls.slot("b"):
        with pytest.raises(SessionProblem, match="2 calls of the policy are open"), calls.slot("a"):
            pass
        assert dict(calls.of_worker) == {"a": 1, "b": 1}
    assert not calls.of_worker
    with calls.slot("a"):
        pass
