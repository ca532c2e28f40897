"""Requests of the OpenAI API: what is taken, what is refused by name, and what is answered."""

import json
import re
import sys
from typing import Any

import msgspec
import pytest

from services.contracts.config.episodes import SideCalls
from services.contracts.sessions import (
    Turn,
    packed,
    parse_session_id,
    session_id,
)
from services.gateway.openai.answers import AnswerWriter
from services.gateway.openai.errors import SessionProblem, over
from services.gateway.openai.requests import chat_call, completions_call
from services.gateway.policy.options import policy_call
from services.gateway.sessions.histories import is_side_call, request_digest
from services.gateway.sessions.rewards import reward_of
from services.gateway.sessions.turn_requests import piece_of
from tests.unit.gateway.session_calls import ASKED, SAMPLING, TOOL, chat

LATEST_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def test_options_that_change_nothing_are_taken() -> None:
    call = chat(
        model="any", temperature=1, top_p=1.0, n=1, stream=True, stop="x", seed=3,
        max_completion_tokens=9, tools=[TOOL], tool_choice="auto", response_format={"type": "text"},
        logprobs=False, presence_penalty=0, user="me", logit_bias=None, store=True,
        modalities=["text"], prompt_cache_retention="24h",
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
        ("parallel_tool_calls", "no"),
        ("guided_json", {}),
        ("max_tokens", 0),
        ("max_tokens", "9"),
        ("max_tokens", 1 << 31),
        ("max_completion_tokens", 0),
        ("seed", -1),
        ("stop", ["a", 1]),
        ("stop", [""]),
        ("tools", [{"type": "function"}]),
        ("messages", []),
        ("messages", "hi"),
        ("messages", ASKED * 16_385),
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
        {"role": "assistant", "content": [{"type": "refusal", "text": "no"}]},
        {"role": "assistant", "tool_calls": [{"id": "x"}]},
        {"role": "tool", "content": "x", "tool_call_id": 5},
    ],
)
def test_a_malformed_message_is_refused_with_its_place(message: Any) -> None:
    with pytest.raises(SessionProblem, match=r"messages\[1\]"):
        chat(messages=[*ASKED, message])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"type": "nosuch"}, "Invalid enum value 'nosuch' - at `$.type`"),
        ({"properties": {"a": {"required": "a"}}}, "got `str` - at `$.properties[...].required`"),
        ({"$schema": [], "type": 5}, "this is no JSON schema"),
        ({"description": "x" * 70_000}, "at most 65,536 characters"),
    ],
    ids=["type", "nested", "draft", "long"],
)
def test_an_invalid_tool_schema_is_refused_with_its_place(
    parameters: dict[str, Any], message: str
) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    with pytest.raises(SessionProblem, match=re.escape(message)) as refused:
        chat(tools=[TOOL, tool])
    assert (refused.value.status, refused.value.param) == (400, "tools[1].function.parameters")


def test_all_tools_together_have_a_limit() -> None:
    function = {"name": "f", "parameters": {"description": "x" * 50_000}}
    tools = [{"type": "function", "function": function}] * 6
    with pytest.raises(SessionProblem, match="at most 262,144 characters"):
        chat(tools=tools)


def test_a_long_schema_is_checked_without_python_code_for_each_part() -> None:
    parts = [{"not": {"pattern": "a"}} for _ in range(2000)]
    schema = {"$schema": LATEST_DRAFT, "anyOf": parts}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    calls: list[str] = []

    def count(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            calls.append(frame.f_code.co_name)

    sys.setprofile(count)
    try:
        taken = chat(tools=[tool])
    finally:
        sys.setprofile(None)
    assert taken.tools == [tool]
    assert len(calls) < 200


RUN = {"chat_template_kwargs": {"enable_thinking": False, "reasoning_effort": "low"}}


@pytest.mark.parametrize(
    "given",
    [
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"chat_template_kwargs": RUN["chat_template_kwargs"]},
        {"chat_template_kwargs": {}},
        {"reasoning_effort": "low"},
        {"reasoning_effort": None},
    ],
)
def test_a_request_may_say_the_variables_of_the_run(given: dict[str, Any]) -> None:
    body = {"messages": ASKED, **given}
    assert chat_call(body, SAMPLING | RUN) == chat_call({"messages": ASKED}, SAMPLING | RUN)
    assert policy_call("chat", body, None, 100, RUN["chat_template_kwargs"]).sampling == {}


@pytest.mark.parametrize(
    ("given", "variables"),
    [
        ({"chat_template_kwargs": {"enable_thinking": True}}, {"enable_thinking": True}),
        ({"chat_template_kwargs": {"enable_thinking": 0}}, {"enable_thinking": 0}),
        ({"chat_template_kwargs": {"other": 1, "enable_thinking": False}}, {"other": 1}),
        ({"reasoning_effort": "high"}, {"reasoning_effort": "high"}),
    ],
)
def test_a_request_may_have_other_variables_than_the_run(
    given: dict[str, Any], variables: dict[str, Any]
) -> None:
    body = {"messages": ASKED, **given}
    call = chat_call(body, SAMPLING | RUN)
    assert call.variables == variables
    assert request_digest(call) != request_digest(chat())
    assert policy_call("chat", body, None, 100, RUN["chat_template_kwargs"]).call == call


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"chat_template_kwargs": [1]}, "an object of the chat template's variables"),
        ({"chat_template_kwargs": {"a b": 1}}, "'a b' is no name of a variable"),
        ({"chat_template_kwargs": {"messages": []}}, "'messages' is no variable of a template"),
        ({"chat_template_kwargs": {"a": "x" * 20_000}}, "16,384 is the most"),
        ({"chat_template_kwargs": {"a": float("nan")}}, "holds NaN or Infinity"),
    ],
)
def test_what_is_no_variable_of_a_template_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SessionProblem, match=message) as refused:
        chat_call({"messages": ASKED, **given}, SAMPLING | RUN)
    assert (refused.value.status, refused.value.param) == (400, next(iter(given)))
    with pytest.raises(SessionProblem, match="a text has no chat template"):
        completions_call({"prompt": "x", "chat_template_kwargs": {"a": 1}}, SAMPLING)


def test_integers_that_a_call_cannot_carry_are_refused_wherever_they_are() -> None:
    big = 1 << 64
    parameters = {"type": "object", "default": [{"x": big}]}
    bodies: dict[str, Any] = {
        "messages": [{"role": "user", "content": "2+2", "extra": -big}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": parameters}}],
        "max_tokens": big,
    }
    for name, value in bodies.items():
        with pytest.raises(SessionProblem) as refused:
            chat(**{name: value})
        assert refused.value.detail == f"{name}: it holds an integer beyond 64 bits"
        with pytest.raises(SessionProblem, match="beyond 64 bits") as refused:
            policy_call("chat", {"messages": ASKED, name: value}, None, 100)
        assert refused.value.status == 400
    with pytest.raises(SessionProblem, match="beyond 64 bits"):
        completions_call({"prompt": [1, big]}, SAMPLING)
    msgspec.msgpack.encode(chat(messages=[{**ASKED[0], "extra": big - 1}]))


def test_tools_and_formats_that_are_nested_too_deeply_are_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(5000):
        schema = {"not": schema}
    format = {"type": "json_schema", "json_schema": {"schema": schema}}
    bodies: dict[str, Any] = {
        "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}],
        "response_format": format,
    }
    for name, value in bodies.items():
        with pytest.raises(SessionProblem) as refused:
            chat_call({"messages": ASKED, name: value}, SAMPLING | {"top_k": 20})
        assert refused.value.detail == f"{name}: it is nested too deeply"


def test_schemas_of_older_drafts_are_taken_whichever_they_name() -> None:
    pair = {"type": "array", "items": [{"type": "string"}, {"type": "integer"}]}
    defined = {"properties": {"x": {"$ref": "#/$defs/pair"}}, **pair}
    defined |= {"$schema": LATEST_DRAFT, "$defs": {"pair": pair}}
    function = {"name": "f", "parameters": defined}
    assert chat(tools=[{"type": "function", "function": function}]).tools[0]["function"] == function


SCHEMA = {"type": "object", "properties": {"sum": {"type": "integer"}}}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "sum", "schema": SCHEMA}}


@pytest.mark.parametrize(
    ("format", "structured"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"json_object": True}),
        (JSON_SCHEMA, {"json": SCHEMA}),
    ],
    ids=["text", "object", "schema"],
)
def test_a_run_that_records_sampling_masks_takes_formats(format: Any, structured: Any) -> None:
    call = chat_call({"messages": ASKED, "response_format": format}, SAMPLING | {"top_k": 20})
    assert call.structured == structured
    assert (request_digest(call) == request_digest(chat())) == (structured is None)


ADD = {"type": "function", "function": {"name": "add"}}
REQUIRED = {"messages": ASKED, "tools": [TOOL], "tool_choice": "required"}


@pytest.mark.parametrize("choice", ["required", ADD])
def test_a_run_that_records_sampling_masks_takes_forced_calls(choice: Any) -> None:
    call = chat_call(REQUIRED | {"tool_choice": choice}, SAMPLING | {"top_k": 20})
    assert (call.structured, call.tools) == ({"tool_choice": choice}, [TOOL])
    assert request_digest(call) != request_digest(chat(tools=[TOOL]))


@pytest.mark.parametrize(
    ("changed", "sampling", "message"),
    [
        ({}, {}, "in a run with sampling.top_k"),
        ({}, {"top_k": 20, "temperature": 0.0}, "and a temperature"),
        ({"tools": []}, {"top_k": 20}, "asks for a tool, which `tools` does not have"),
        ({"tool_choice": ADD, "tools": []}, {"top_k": 20}, "asks for the tool 'add'"),
        ({"tool_choice": "any"}, {"top_k": 20}, "auto, none, required, or an object"),
        ({"tool_choice": []}, {"top_k": 20}, "auto, none, required, or an object"),
        ({"tool_choice": {"type": "function"}}, {"top_k": 20}, "auto, none, required, or an obj"),
        ({"tool_choice": ADD | {"type": "custom"}}, {"top_k": 20}, "auto, none, required, or an"),
        ({"tool_choice": {"function": {"name": 5}}}, {"top_k": 20}, "auto, none, required, or an"),
        ({"response_format": {"type": "json_object"}}, {"top_k": 20}, "leave one of them out"),
    ],
)
def test_a_call_that_cannot_be_forced_is_refused(
    changed: dict[str, Any], sampling: dict[str, Any], message: str
) -> None:
    with pytest.raises(SessionProblem, match=message) as refused:
        chat_call(REQUIRED | changed, SAMPLING | sampling)
    assert refused.value.param == "tool_choice"


@pytest.mark.parametrize(
    ("format", "sampling", "message"),
    [
        (JSON_SCHEMA, {}, "in a run with sampling.top_k"),
        (JSON_SCHEMA, {"top_k": 20, "temperature": 0.0}, "and a temperature"),
        ("json_object", {"top_k": 20}, "its type must be text"),
        ({"type": "grammar"}, {"top_k": 20}, "its type must be text"),
        ({"type": "json_schema", "schema": SCHEMA}, {"top_k": 20}, "needs a `schema`"),
        (
            {"type": "json_schema", "json_schema": {"schema": {"title": "x" * 70_000}}},
            {"top_k": 20},
            "at most 65,536 characters",
        ),
    ],
    ids=["no mask", "greedy", "text", "unknown", "misplaced", "long"],
)
def test_a_format_that_cannot_be_taken_is_refused(
    format: Any, sampling: dict[str, Any], message: str
) -> None:
    with pytest.raises(SessionProblem, match=message) as refused:
        chat_call({"messages": ASKED, "response_format": format}, SAMPLING | sampling)
    assert (refused.value.status, refused.value.param) == (400, "response_format")


def test_model_length_or_first_message_identify_side_calls() -> None:
    rules = SideCalls(models=["small"], max_tokens=20, first_message="title")
    assert not is_side_call(chat(), "big", rules)
    assert not is_side_call(chat(max_tokens=21), None, rules)
    assert not is_side_call(chat(), ["small"], rules)
    assert is_side_call(chat(), "small", rules)
    assert is_side_call(chat(max_completion_tokens=20), "big", rules)
    title = [{"role": "system", "content": [{"type": "text", "text": "Write a title."}]}, *ASKED]
    assert is_side_call(chat(messages=title), "big", rules)
    assert is_side_call(completions_call({"prompt": "A title: "}, SAMPLING), "big", rules)
    assert not is_side_call(completions_call({"prompt": [1]}, SAMPLING), "big", rules)
    none = SideCalls()
    assert not is_side_call(chat(max_tokens=1, messages=title), "small", none)


def test_the_same_request_has_the_same_digest_and_another_has_not() -> None:
    same = request_digest(chat(user="a", stream=True))
    assert same == request_digest(chat(user="b"))
    others = [chat(seed=1), chat(stop="x"), chat(max_tokens=5), chat(tools=[TOOL])]
    side = chat()
    side.side = True
    assert len({same, *map(request_digest, [*others, side])}) == 6


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
        {"reward": -1.7e308},
        {"components": {"a": float("inf")}},
        {"components": {"a": 1e12, "b": 1e12}},
        {"reward": 0, "components": {"a": 1e13}},
        {"components": []},
        {"components": dict.fromkeys(map(str, range(65)), 1.0)},
        {"components": {"a" * 101: 1.0}},
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
    writer, piece = AnswerWriter("chat", "x", turn.created, "m", True), piece_of(turn, "chat")
    whole = writer.whole([piece])
    assert whole["choices"][0]["finish_reason"] == "tool_calls"
    assert whole["usage"] == {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    *events, done = [*writer.begin(), *writer.events(piece)]
    assert done == b"data: [DONE]\n\n"
    chunks = [json.loads(event.removeprefix(b"data: ")) for event in events]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[1]["choices"][0]["delta"] == {"content": "hm"}
    assert chunks[2]["choices"][0]["delta"]["tool_calls"] == [{"index": 0, **calls[0]}]
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert chunks[-1]["usage"] == whole["usage"]
    turn.message = {"text": "four"}
    writer, piece = AnswerWriter("completions", "x", 5, "m"), piece_of(turn, "completions")
    first, *_ = writer.events(piece)
    assert json.loads(first.removeprefix(b"data: "))["choices"][0]["text"] == "four"
    assert writer.whole([piece])["choices"][0]["text"] == "four"
