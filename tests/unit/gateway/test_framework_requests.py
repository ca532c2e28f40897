"""Recorded requests of common frameworks: each request is taken, and what a framework
makes of an answer continues the conversation. Versions: docs/agents.md.
"""

from typing import Any

import pytest

from services.contracts.sessions import Call, chat_histories
from services.gateway.openai.errors import SessionProblem
from services.gateway.openai.requests import chat_call
from services.gateway.policy.options import policy_call
from services.gateway.sessions.histories import beginnings, request_digest

SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
ASKED = {"role": "user", "content": "What is 27+35?"}
RESULT = {"role": "tool", "tool_call_id": "call-0", "content": "62"}


def calling(arguments: str, id: str = "call-0") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "add", "arguments": arguments}}


def tool(**more: Any) -> dict[str, Any]:
    numbers = {"a": {"type": "integer"}, "b": {"type": "integer"}}
    parameters = {"type": "object", "properties": numbers, "required": ["a", "b"]}
    function = {"name": "add", "description": "Add two numbers.", "parameters": parameters, **more}
    return {"type": "function", "function": function}


SAMPLED: dict[str, Any] = {
    "role": "assistant",
    "content": "Let me see.\n",
    "tool_calls": [calling('{"a": 27, "b": 35.0}'), calling('{"b": 4, "a": 3}', "call-1")],
}
CALLED = {"role": "assistant", "content": None, "tool_calls": [calling('{"a": 27, "b": 35}')]}
REASONED = {
    "role": "assistant",
    "content": "<think>\nhm\n</think>\n\n",
    "tool_calls": [calling("{}")],
}

# (options, the question, the answer, as it comes back)
FRAMEWORKS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "langgraph, an agent with a name": (
        {"stream": False, "tools": [tool()]},
        ASKED,
        CALLED,
        {**CALLED, "name": "summer"},
    ),
    "langchain, strict and one call at a time": (
        {
            "stream": True,
            "stream_options": {"include_usage": True},
            "tools": [tool(strict=True)],
            "parallel_tool_calls": False,
            "store": True,
        },
        ASKED,
        SAMPLED,
        {**SAMPLED, "tool_calls": [{"type": "function", **call} for call in SAMPLED["tool_calls"]]},
    ),
    "langchain, a call without arguments": (
        {"stream": False, "tools": [tool()]},
        ASKED,
        {**CALLED, "tool_calls": [calling("null")]},
        {**CALLED, "tool_calls": [calling("{}")]},
    ),
    "openai-agents": (
        {"tools": [tool(strict=True)], "metadata": {"a": "b"}, "store": True},
        ASKED,
        {**SAMPLED, "reasoning": "hm"},
        {**SAMPLED, "reasoning": "hm"},
    ),
    "openai-agents, a call without arguments": (
        {"tools": [tool(strict=False)]},
        ASKED,
        {**CALLED, "tool_calls": [calling("")]},
        {**CALLED, "tool_calls": [calling("{}")]},
    ),
    "pydantic-ai": (
        {
            "stream": True,
            "stream_options": {"include_usage": True},
            "tool_choice": "auto",
            "tools": [tool(strict=True)],
            "max_completion_tokens": 300,
            "seed": 4,
        },
        ASKED,
        SAMPLED,
        {
            **SAMPLED,
            "tool_calls": [calling('{"a":27,"b":35}'), calling('{"b":4,"a":3}', "call-1")],
        },
    ),
    "pydantic-ai, which parses reasoning itself": (
        {"stream": False, "tool_choice": "auto", "tools": [tool(strict=True)]},
        ASKED,
        REASONED,
        {**REASONED, "content": "<think>\n\nhm\n\n</think>\n\n\n\n"},
    ),
    "litellm": (
        {"tools": [tool()], "tool_choice": "auto", "parallel_tool_calls": True},
        ASKED,
        {**CALLED, "reasoning": "hm"},
        {**CALLED, "reasoning_content": "hm", "provider_specific_fields": {"reasoning": "hm"}},
    ),
    "autogen": (
        {"stream": False, "tool_choice": "auto", "tools": [tool()]},
        {**ASKED, "name": "user"},
        CALLED,
        CALLED,
    ),
    "openai": (
        {
            "service_tier": "auto",
            "prompt_cache_key": "a",
            "safety_identifier": "b",
            "user": "me",
            "n": 1,
            "tools": [tool(strict=True)],
        },
        {"role": "user", "name": "me", "content": [{"type": "text", "text": "What is 27+35?"}]},
        CALLED,
        {**CALLED, "content": "", "refusal": None, "annotations": None, "audio": None},
    ),
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_a_framework_sends_back_continues_the_conversation(framework: str) -> None:
    options, question, answer, sent_back = FRAMEWORKS[framework]
    first = chat_call({"model": "policy", "messages": [question], **options}, SAMPLING)
    assert policy_call("chat", {"messages": [question], **options}, None, 1000).call == first
    history = chat_histories(first.tools, [*first.messages, answer])[-1]
    results = [{**RESULT, "tool_call_id": call["id"]} for call in answer.get("tool_calls", [])]
    follows = results or [ASKED]
    body = {"model": "policy", "messages": [question, sent_back, *follows], **options}
    second = chat_call(body, SAMPLING)
    assert beginnings(second, []) == [(2, history)]


def test_smolagents_writes_its_calls_as_text_and_so_begins_another_conversation() -> None:
    options = {"stop": ["Observation:", "Calling tools:"], "tool_choice": "auto", "tools": [tool()]}
    task = {"role": "user", "content": [{"type": "text", "text": "New task:\n2+2?"}]}
    first = chat_call({"messages": [task], **options}, SAMPLING)
    history = chat_histories(first.tools, [*first.messages, CALLED])[-1]
    text = "Calling tools:\n[{'id': 'call-0', 'type': 'function', 'function': {'name': 'add', …}}]"
    answer_in_parts = {"role": "assistant", "content": [{"type": "text", "text": text}]}
    seen = {"role": "user", "content": [{"type": "text", "text": "Observation:\n62"}]}
    second = chat_call({"messages": [task, answer_in_parts, seen], **options}, SAMPLING)
    ((items, other),) = beginnings(second, [])
    assert (items, other != history) == (2, True)


@pytest.mark.parametrize(
    ("sampled", "sent"),
    [
        ("<think>\nhm\n</think>\n\n4", "<think>\nhm\n</think>\n\n5"),
        ("<think>\nhm\n</think>\n\n4", "4"),
        ("a b", "a  b"),
    ],
)
def test_an_answer_with_another_text_begins_another_conversation(sampled: str, sent: str) -> None:
    recorded, other = ({"role": "assistant", "content": text} for text in (sampled, sent))
    assert chat_histories([], [ASKED, recorded])[-1] != chat_histories([], [ASKED, other])[-1]


def test_the_name_of_one_who_asks_counts() -> None:
    unnamed, named = chat_histories([], [ASKED]), chat_histories([], [{**ASKED, "name": "me"}])
    assert unnamed != named


def test_one_call_at_a_time_is_another_request() -> None:
    def asked(**options: Any) -> Call:
        return chat_call({"messages": [ASKED], "tools": [tool()], **options}, SAMPLING)

    assert request_digest(asked(parallel_tool_calls=True)) == request_digest(asked())
    assert request_digest(asked(parallel_tool_calls=False)) != request_digest(asked())


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("n", 2, "a request has one answer here"),
        ("logprobs", True, "answers come without log-probabilities here"),
        ("frequency_penalty", 0.5, "training accounts for whole samples of the policy alone"),
    ],
)
def test_a_refused_option_says_why(option: str, value: Any, reason: str) -> None:
    with pytest.raises(SessionProblem, match=f"{option}: {reason}"):
        chat_call({"messages": [ASKED], option: value}, SAMPLING)
