"""Requests of the OpenAI API: what is taken, what is refused by name, what continues a session."""

import json
from typing import Any

import pytest

from services.contracts.sessions import (
    Standing,
    Turn,
    conversation_digest,
    digest_of,
    packed,
    parse_session_id,
    session_id,
)
from services.gateway.sessions.answers import chat_answer, chat_chunks, completions_chunks
from services.gateway.sessions.errors import SessionProblem, over
from services.gateway.sessions.requests import (
    chat_call,
    completions_call,
    continued,
    request_digest,
    reward_of,
)

SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
ASKED = [{"role": "user", "content": "2+2"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def chat(**body: Any) -> Any:
    return chat_call({"messages": ASKED, **body}, SAMPLING)


def test_options_that_change_nothing_are_taken() -> None:
    call = chat(
        model="any", temperature=1, top_p=1.0, n=1, stream=True, stop="x", seed=3,
        max_completion_tokens=9, tools=[TOOL], tool_choice="auto", response_format={"type": "text"},
        logprobs=False, presence_penalty=0, user="me", logit_bias=None,
    )  # fmt: skip
    assert (call.stop, call.seed, call.max_tokens, call.tools) == (["x"], 3, 9, [TOOL])
    assert chat(tools=[TOOL], tool_choice="none").tools == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0.0),
        ("temperature", True),
        ("top_p", 0.9),
        ("n", 2),
        ("logprobs", True),
        ("frequency_penalty", 0.1),
        ("logit_bias", {"5": 100}),
        ("response_format", {"type": "json_object"}),
        ("tool_choice", "required"),
        ("parallel_tool_calls", False),
        ("guided_json", {}),
        ("max_tokens", 0),
        ("max_tokens", "9"),
        ("seed", -1),
        ("stop", ["a", 1]),
        ("stop", [""]),
        ("tools", [{"type": "function"}]),
        ("messages", []),
        ("messages", "hi"),
    ],
)
def test_what_training_cannot_account_for_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(SessionProblem) as refused:
        chat(**{name: value})
    assert refused.value.status == 400
    assert str(refused.value.param).startswith(name)
    error = json.loads(bytes(refused.value.response("/").body))["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith(name)


@pytest.mark.parametrize(
    "message",
    [
        "hi",
        {"content": "x"},
        {"role": "robot", "content": "x"},
        {"role": "user", "content": 5},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
        {"role": "user", "content": [{"type": "text"}]},
        {"role": "assistant", "tool_calls": [{"id": "x"}]},
        {"role": "tool", "content": "x", "tool_call_id": 5},
    ],
)
def test_a_malformed_message_is_refused_with_its_place(message: Any) -> None:
    with pytest.raises(SessionProblem, match=r"messages\[1\]"):
        chat(messages=[*ASKED, message])


def test_what_the_client_sends_back_continues_the_conversation() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    standing = Standing(items=2, digest=conversation_digest([TOOL], [*ASKED, answer]))
    # As the official client dumps it, with a result after it.
    dumped = {**answer, "refusal": None, "annotations": None, "function_call": None, "content": ""}
    result = {"role": "tool", "tool_call_id": "c", "content": "4"}
    parts = [
        {"role": "user", "content": [{"type": "text", "text": "2+"}, {"type": "text", "text": "2"}]}
    ]
    for asked in (ASKED, parts):
        next_call = chat(messages=[*asked, dumped, result], tools=[TOOL])
        assert continued(next_call, 1, standing).new == 2
    for messages, tools in (
        ([*ASKED, dumped], [TOOL]),
        ([{"role": "user", "content": "3+3"}, dumped, result], [TOOL]),
        ([*ASKED, {**dumped, "content": "edited"}, result], [TOOL]),
        ([*ASKED, dumped, result], []),
        (ASKED, [TOOL]),
    ):
        with pytest.raises(SessionProblem, match="does not continue") as refused:
            continued(chat(messages=messages, tools=tools), 1, standing)
        assert (refused.value.status, refused.value.code) == (409, "history_differs")


def test_a_completions_prompt_begins_with_what_was_said() -> None:
    standing = Standing(items=4, digest=digest_of("2+2=".replace("=", "4")))
    call = completions_call({"prompt": "2+24 sure?"}, SAMPLING)
    assert continued(call, 1, standing).new == 4
    ids = Standing(items=2, digest=digest_of([1, 2]))
    assert continued(completions_call({"prompt": [1, 2, 3]}, SAMPLING), 1, ids).new == 2
    others: list[Any] = [[1, 3, 3], [1, 2], "1,2,3"]
    for prompt in others:
        with pytest.raises(SessionProblem, match="does not continue"):
            continued(completions_call({"prompt": prompt}, SAMPLING), 1, ids)
    unusable: list[Any] = ["", [], ["a", "b"], [[1]], [1 << 40], [-1], [True], None]
    for prompt in unusable:
        with pytest.raises(SessionProblem, match="prompt"):
            completions_call({"prompt": prompt}, SAMPLING)


def test_the_same_request_has_the_same_digest_and_another_has_not() -> None:
    same = request_digest(chat(user="a", stream=True))
    assert same == request_digest(chat(user="b"))
    others = [chat(seed=1), chat(stop="x"), chat(max_tokens=5), chat(tools=[TOOL])]
    assert len({same, *map(request_digest, others)}) == 5


def test_rewards() -> None:
    assert reward_of({"reward": 1}).reward == 1.0
    summed = reward_of({"components": {"a": 0.25, "b": 1}})
    assert (summed.reward, summed.components) == (1.25, {"a": 0.25, "b": 1.0})
    assert reward_of({"reward": None, "error": "it broke"}).reward is None
    bodies: list[dict[str, Any]] = [
        {},
        {"reward": None},
        {"reward": "1"},
        {"reward": True},
        {"reward": float("nan")},
        {"reward": 10**400},
        {"components": {"a": float("inf")}},
        {"components": []},
        {"rewards": 1},
    ]
    for body in bodies:
        with pytest.raises(SessionProblem):
            reward_of(body)


def test_a_conflict_is_not_tried_again() -> None:
    conflict = over("stale")
    assert conflict.response("/").headers["x-should-retry"] == "false"
    assert "max_staleness" in conflict.detail


def test_a_sessions_name_tells_its_run_attempt_and_number() -> None:
    assert parse_session_id(session_id("ab12", "f00d", 3)) == ("ab12", "f00d", 3)
    for text in ("", "a-b", "a-b-c", "a--1", "a-b-1234567", "-b-1"):
        with pytest.raises(ValueError, match=r"session|unpack"):
            parse_session_id(text)


def test_a_stream_says_the_same_as_the_whole_answer() -> None:
    function = {"name": "add", "arguments": "{}"}
    calls = [{"id": "c", "type": "function", "function": function}]
    turn = Turn(
        added=packed([1]), token_ids=packed([2, 3]), logprobs=packed([0, 0], "<f4"), versions=[],
        finish_reason="stop", message={"role": "assistant", "content": "hm", "tool_calls": calls},
        prompt_tokens=1, created=5,
    )  # fmt: skip
    whole = chat_answer(turn, "x", "m")
    assert whole["choices"][0]["finish_reason"] == "tool_calls"
    assert whole["usage"] == {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    *events, done = list(chat_chunks(turn, "x", "m", True))
    assert done == b"data: [DONE]\n\n"
    chunks = [json.loads(event.removeprefix(b"data: ")) for event in events]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": "hm"}
    assert chunks[1]["choices"][0]["delta"]["tool_calls"] == [{"index": 0, **calls[0]}]
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert chunks[-1]["usage"] == whole["usage"]
    turn.message = {"text": "four"}
    text = json.loads(next(completions_chunks(turn, "x", "m", False)).removeprefix(b"data: "))
    assert text["choices"][0]["text"] == "four"
