"""The policy as an endpoint: which version and worker a model names, options, limits."""

from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from services.contracts.policy_calls import Piece, TokenScore
from services.contracts.records import RunRecord, RunState, WorkerRecord
from services.gateway.openai.answers import AnswerWriter
from services.gateway.openai.errors import SessionProblem
from services.gateway.openai.requests import choices_of
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
        ("ft:a/b:me:x:0123abcd", Asked("0123abcd")),
        ("ft:a/b:me:x:0123abcd:ckpt-step-7", Asked("0123abcd", 7)),
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
        ("n", 0),
        ("n", 129),
        ("n", True),
        ("best_of", 2),
        ("echo", True),
        ("logprobs", 3),
        ("top_logprobs", 5),
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


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("logprobs", 21),
        ("logprobs", True),
        ("top_logprobs", 1),
        ("echo", "yes"),
        ("prompt", []),
        ("prompt", ["a", 3]),
        ("prompt", [[1, 2], ["a"]]),
        ("prompt", ["a"] * 129),
        ("n", 65),
        ("max_tokens", -1),
    ],
)
def test_a_wrong_option_of_completions_is_named(option: str, value: object) -> None:
    with pytest.raises(SessionProblem) as refused:
        policy_call("completions", {"prompt": ["a", "b"], option: value}, None, 100)
    assert refused.value.param == option


def test_evaluators_ask_for_several_answers_and_log_probabilities() -> None:
    body = {"prompt": [[1, 2], "ab"], "echo": True, "max_tokens": 0, "logprobs": 1, "n": 2}
    call = policy_call("completions", {**body, "best_of": 2}, None, 100)
    assert (call.prompts, call.n, call.scores) == ([[1, 2], "ab"], 2, 1)
    assert (call.echo, call.answerless, choices_of(body)) == (True, True, 4)
    plain = policy_call("completions", {"prompt": "a", "logprobs": False}, None, 100)
    assert (plain.prompts, plain.n, plain.scores, plain.echo) == ([], 1, None, False)

    chat = {"messages": ASKED, "logprobs": True}
    assert policy_call("chat", chat, None, 100).scores == 0
    assert policy_call("chat", {**chat, "top_logprobs": 20}, None, 100).scores == 20
    assert policy_call("chat", {"messages": ASKED, "top_logprobs": 0}, None, 100).scores is None


SCORES = [TokenScore("é", -0.5, [("é", -0.5), ("e", -1.0)]), TokenScore("!", -2.0, [("!", -2.0)])]
CHOICES = [
    Piece(version=3, choice=1, text="no", scores=[TokenScore("no", -4.0)]),
    Piece(text="é!", scores=SCORES),
    Piece(choice=0, finish_reason="stop", more=True, prompt_tokens=5, sampled_tokens=2),
    Piece(choice=1, text="pe", scores=[TokenScore("pe", -1.0)]),
    Piece(choice=1, finish_reason="length", sampled_tokens=3),
]


def test_choices_and_their_log_probabilities_have_the_form_of_each_api() -> None:
    chat = ChatCompletion.model_validate(
        AnswerWriter("chat", "x", 1, "r@3", choices=2).whole(CHOICES), strict=True
    )
    text = Completion.model_validate(
        AnswerWriter("completions", "x", 1, "r@3", choices=2).whole(CHOICES), strict=True
    )
    assert [choice.message.content for choice in chat.choices] == ["é!", "nope"]
    assert [choice.finish_reason for choice in text.choices] == ["stop", "length"]
    assert chat.usage is not None
    assert (chat.usage.prompt_tokens, chat.usage.completion_tokens) == (5, 5)
    assert chat.choices[0].logprobs is not None
    first, second = chat.choices[0].logprobs.content or []
    assert (first.token, first.logprob, first.bytes) == ("é", -0.5, [0xC3, 0xA9])
    assert [token.token for token in first.top_logprobs] == ["é", "e"]
    assert [token.token for token in second.top_logprobs] == ["!"]
    scored = text.choices[1].logprobs
    assert scored is not None
    assert (scored.tokens, scored.text_offset) == (["no", "pe"], [0, 2])
    assert text.choices[0].logprobs is not None
    assert text.choices[0].logprobs.top_logprobs == [{"é": -0.5, "e": -1.0}, {"!": -2.0}]
    assert scored.top_logprobs is None


def test_a_stream_of_choices_ends_once_with_the_tokens_of_all() -> None:
    writer = AnswerWriter("chat", "x", 1, "r@3", usage=True, choices=2)
    events = [*writer.begin(), *(event for piece in CHOICES for event in writer.events(piece))]

    assert events[-1] == b"data: [DONE]\n\n"
    chunks = [ChatCompletionChunk.model_validate_json(event[6:]) for event in events[:-1]]
    assert [chunk.choices[0].index for chunk in chunks[:-1]] == [0, 1, 1, 0, 0, 1, 1]
    assert [chunk.choices[0].finish_reason for chunk in chunks[4:-1]] == ["stop", None, "length"]
    assert chunks[-1].usage is not None
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (5, 5)
    logprobs = chunks[3].choices[0].logprobs
    assert logprobs is not None
    assert [score.token for score in logprobs.content or []] == ["é", "!"]


def test_only_a_fixed_version_answers_in_a_required_form() -> None:
    body = {"messages": ASKED, "response_format": {"type": "json_object"}}
    with pytest.raises(SessionProblem, match="a weight update may interrupt an answer"):
        policy_call("chat", body, None, 100)
    assert policy_call("chat", body, 4, 100, is_fixed=True).call.structured == {"json_object": True}
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    forced = {"messages": ASKED, "tools": [tool], "tool_choice": "required"}
    call = policy_call("chat", forced, 4, 100, is_fixed=True).call
    assert call.structured == {"tool_choice": "required"}


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
