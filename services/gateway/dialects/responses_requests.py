"""Turns requests of OpenAI's Responses API into requests of chat completions. Pure. Raises
SessionProblem.

Items of one answer that come back become the message that was recorded, so the session finds its
turn: a thought, a text and the calls that follow one another are one message.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from services.gateway.dialects.responses_answers import ResponsesWriter, echo_of
from services.gateway.openai.answers import TurnRequest
from services.gateway.openai.requests import (
    EFFORT,
    UNKNOWN,
    VARIABLES,
    check_schema,
    refused,
)

SAME = frozenset(
    {"model", "stream", "temperature", "top_p", "top_k", "seed", "parallel_tool_calls", VARIABLES}
)
"""Keys that mean the same in chat completions. The Responses API lacks some of them."""
UNUSED = frozenset(
    {
        "store", "metadata", "user", "service_tier", "prompt_cache_key", "prompt_cache_retention",
        "prompt_cache_options", "safety_identifier", "stream_options", "client_metadata",
        "max_tool_calls",
    }
)  # fmt: skip
"""Keys that change no token. `max_tool_calls` limits OpenAI's own tools."""
KEPT = ("previous_response_id", "conversation")
"""Keys that name what was kept (`sessions.kept_responses`)."""
ROLES = ("user", "assistant", "system", "developer")
TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
"""The parts of a message that can be read, each with the key of its text."""
NEUTRAL: dict[str, tuple[tuple[Any, ...], str]] = {
    "background": ((False,), "an answer is waited for here: leave it out"),
    "truncation": (("disabled",), "a conversation is never cut here: leave items out yourself"),
    "top_logprobs": ((0,), "answers come without log-probabilities here: leave it out"),
}
"""Keys that are taken with the values that change nothing, and why no other value is."""
NOT_KEPT = (
    "the policy's endpoint keeps no responses: send the whole conversation as `input`, or ask in a "
    "session, which keeps its own"
)
LOGPROBS = "message.output_text.logprobs"
TEXT_ALONE = "the policy reads text alone: leave it out"


def responses_request(body: Mapping[str, Any]) -> TurnRequest:
    """Return a request of the Responses API that names nothing that was kept. The id of its
    response is made for it."""
    for name in KEPT:
        if body.get(name) is not None:
            raise refused(name, NOT_KEPT)
    chat = chat_body(body)
    return TurnRequest("chat", chat, partial(_own_id, echo_of({**body, "store": False})))


def _own_id(echo: dict[str, Any], id: str, created: int, model: str) -> ResponsesWriter:
    return ResponsesWriter(echo, f"resp_{id}", created, model)


def chat_body(body: Mapping[str, Any], earlier: Iterable[dict[str, Any]] = ()) -> dict[str, Any]:
    """Return the body of the same request to chat completions. `earlier`: messages of the response
    or the conversation that it continues."""
    chat: dict[str, Any] = {name: body[name] for name in SAME & body.keys()}
    instructions = body.get("instructions")
    if instructions is not None and not isinstance(instructions, str):
        raise refused("instructions", "must be a text")
    first = [{"role": "system", "content": instructions}] if instructions is not None else []
    chat["messages"] = [*first, *earlier, *messages_of("input", body.get("input"))]
    for name, value in body.items():
        if value is None or name in SAME | UNUSED or name in (*KEPT, "input", "instructions"):
            continue
        if name == "max_output_tokens":
            chat["max_completion_tokens"] = value
        elif name == "tools":
            chat["tools"] = _tools(value)
        elif name == "tool_choice":
            chat["tool_choice"] = _choice(value)
        elif name == "text":
            chat |= _text(value)
        elif name == "reasoning":
            chat |= _reasoning(value)
        elif name == "include":
            if not isinstance(value, list) or LOGPROBS in value:
                raise refused("include", f"must be a list without {LOGPROBS!r}")
        elif name not in NEUTRAL:
            raise refused(name[:100], UNKNOWN)
        elif value not in NEUTRAL[name][0]:
            raise refused(name, NEUTRAL[name][1])
    return chat


def messages_of(where: str, given: Any) -> list[dict[str, Any]]:
    """Return items as messages. `where`: their place in the request."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise refused(where, "must be a text, or a list of items")
    messages: list[dict[str, Any]] = []
    for at, item in enumerate(given):
        _add(messages, f"{where}[{at}]", item)
    return messages


def _add(messages: list[dict[str, Any]], where: str, item: Any) -> None:
    """Add an item to the messages before it. Items of one answer become one message: what follows
    a thought, and calls after an answer's text or its other calls."""
    if not isinstance(item, dict):
        raise refused(where, "must be an item, an object")
    kind = item.get("type") or "message"
    last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    if kind == "function_call":
        if last is None:
            last = {"role": "assistant", "content": ""}
            messages.append(last)
        last.setdefault("tool_calls", []).append(_call(where, item))
    elif kind == "function_call_output":
        id = _text_in(where, item, "call_id")
        output = _content(f"{where}.output", item.get("output"))
        messages.append({"role": "tool", "tool_call_id": id, "content": output})
    elif kind == "reasoning":
        thought = "".join(_thoughts(where, item))
        messages.append({"role": "assistant", "content": "", "reasoning": thought})
    elif kind == "message":
        role, content = item.get("role"), _content(f"{where}.content", item.get("content"))
        if role not in ROLES:
            raise refused(f"{where}.role", f"must be one of {', '.join(ROLES)}")
        if role == "assistant" and last is not None and _is_thought(last):
            last["content"] = content
        else:
            messages.append({"role": role, "content": content})
    else:
        raise refused(where, f"an item of type {kind!r} cannot be used: {TEXT_ALONE}"[:300])


def _is_thought(message: dict[str, Any]) -> bool:
    """Whether a message has a thought, and neither text nor calls so far."""
    return "reasoning" in message and not message["content"] and "tool_calls" not in message


def _call(where: str, item: dict[str, Any]) -> dict[str, Any]:
    function = {name: _text_in(where, item, name) for name in ("name", "arguments")}
    return {"id": _text_in(where, item, "call_id"), "type": "function", "function": function}


def _thoughts(where: str, item: dict[str, Any]) -> Iterator[str]:
    """Yield the texts of a thought. OpenAI's encrypted thoughts are none of the policy's."""
    for name in ("content", "summary"):
        parts = item.get(name) or []
        if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
            raise refused(f"{where}.{name}", "must be a list of parts")
        if parts:
            for at, part in enumerate(parts):
                yield _text_in(f"{where}.{name}[{at}]", part, "text")
            return


def _content(where: str, content: Any) -> str | list[dict[str, Any]]:
    """Return the content of a message, or a function's output."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise refused(where, "must be a text, or a list of parts")
    parts: list[dict[str, Any]] = []
    for at, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str) or kind not in TEXTS:
            raise refused(
                f"{where}[{at}]", f"a part of type {kind!r} cannot be used: {TEXT_ALONE}"[:300]
            )
        text = _text_in(f"{where}[{at}]", part, TEXTS[kind])
        parts.append({"type": "text", "text": text})
    return parts if len(parts) > 1 else "".join(part["text"] for part in parts)


def _text_in(where: str, item: dict[str, Any], name: str) -> str:
    if not isinstance(item.get(name), str):
        raise refused(f"{where}.{name}", "must be a text")
    return str(item[name])


def _tools(tools: Any) -> list[dict[str, Any]]:
    if not isinstance(tools, list):
        raise refused("tools", "must be a list of tools")
    return [_tool(f"tools[{at}]", tool) for at, tool in enumerate(tools)]


def _tool(where: str, tool: Any) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind != "function":
        raise refused(
            where,
            f"a tool of type {kind!r} is not served here: describe it as a tool of type "
            "'function', or leave it out"[:300],
        )
    parameters = tool.get("parameters")
    if not isinstance(tool.get("name"), str) or not isinstance(parameters or {}, dict):
        raise refused(where, "must be a function with a name and parameters")
    check_schema(f"{where}.parameters", parameters or {})
    names = ("name", "description", "parameters", "strict")
    function = {name: tool[name] for name in names if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _choice(choice: Any) -> Any:
    if isinstance(choice, dict) and choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    if choice in ("auto", "none", "required"):
        return choice
    raise refused("tool_choice", "must be auto, none, required, or an object that names a function")


def _text(text: Any) -> dict[str, Any]:
    """Return the option of chat completions for `text`. Its `verbosity` is not used."""
    if not isinstance(text, dict):
        raise refused("text", "must be an object")
    if unknown := sorted(text.keys() - {"format", "verbosity"}):
        raise refused(f"text.{unknown[0]}"[:100], UNKNOWN)
    format = text.get("format")
    if format is None:
        return {}
    kind = format.get("type") if isinstance(format, dict) else None
    if kind == "json_schema":
        named = {name: value for name, value in format.items() if name != "type"}
        return {"response_format": {"type": kind, "json_schema": named}}
    if kind not in ("text", "json_object"):
        raise refused("text.format", "its type must be text, json_object or json_schema")
    return {"response_format": {"type": kind}}


def _reasoning(reasoning: Any) -> dict[str, Any]:
    """Return the option of chat completions for `reasoning`. Its `summary` is not used."""
    if not isinstance(reasoning, dict):
        raise refused("reasoning", "must be an object")
    effort = reasoning.get("effort")
    return {} if effort is None else {EFFORT: effort}
