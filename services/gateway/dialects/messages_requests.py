"""Turns requests of Anthropic's Messages API into requests of chat completions. Pure. Raises
SessionProblem.

An assistant's message that comes back becomes the message that was recorded, so the session finds
its turn: the ids of calls stay, arguments are compared as JSON, and thoughts are not compared.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from services.gateway.dialects.messages_answers import RAW, MessagesWriter
from services.gateway.openai.answers import TurnRequest
from services.gateway.openai.requests import (
    EFFORT,
    MAX_STOPS,
    UNKNOWN,
    VARIABLES,
    check_schema,
    refused,
)

SAME = frozenset({"model", "stream", "temperature", "top_p", "top_k", "seed", VARIABLES, EFFORT})
"""Keys that mean the same in chat completions. Anthropic's API lacks the last three."""
UNUSED = frozenset(
    {
        "metadata", "service_tier", "cache_control", "context_management", "inference_geo", "speed",
        "thinking", "diagnostics",
    }
)  # fmt: skip
"""Keys that change no token here. The run's chat template decides whether the policy thinks."""
BILLING = "x-anthropic-billing-header:"
"""Begins a system block that Claude Code writes for Anthropic's accounts. It differs from request
to request, so the policy must not read it: no request would continue a conversation."""
TEXT_ALONE = "the policy reads text alone: leave it out"
NO_PREFILL = (
    "the last message is the assistant's, and an answer that a client has begun cannot be trained: "
    "end with a message of the user"
)


def messages_request(body: Mapping[str, Any]) -> TurnRequest:
    """Return a request of the Messages API as one of chat completions."""
    max_tokens = body.get("max_tokens")
    if max_tokens is None:
        raise refused("max_tokens", "is required: the most tokens of the answer")
    return TurnRequest("chat", chat_body(body), MessagesWriter)


def chat_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of the same request to chat completions."""
    chat: dict[str, Any] = {name: body[name] for name in SAME & body.keys()}
    chat["messages"] = [*_system(body.get("system")), *_conversation(body.get("messages"))]
    for name, value in body.items():
        if value is None or name in SAME | UNUSED or name in ("system", "messages"):
            continue
        if name == "max_tokens":
            chat["max_tokens"] = value
        elif name == "stop_sequences":
            chat["stop"] = _stops(value)
        elif name == "tools":
            chat["tools"] = _tools(value)
        elif name == "tool_choice":
            chat |= _choice(value)
        elif name == "output_config":
            chat |= _output(value)
        elif name == "output_format":
            chat["response_format"] = _format(name, value)
        elif name != "mcp_servers" or value != []:
            raise refused(name[:100], UNKNOWN)
    return chat


def _system(system: Any) -> list[dict[str, Any]]:
    blocks = [
        block
        for block in _text_blocks("system", system)
        if not block["text"].lstrip().startswith(BILLING)
    ]
    return [{"role": "system", "content": _content(blocks)}] if blocks else []


def _conversation(messages: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(messages, list) or not messages:
        raise refused("messages", "must be a list of at least one message")
    for at, message in enumerate(messages):
        where = f"messages[{at}]"
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ("user", "assistant", "system"):
            raise refused(where, "must be an object with a role: user or assistant")
        content = message.get("content")
        if role == "system":
            blocks = _text_blocks(f"{where}.content", content)
            yield {"role": "system", "content": _content(blocks)}
        elif role == "user":
            yield from _asked(f"{where}.content", content)
        else:
            yield _answered(f"{where}.content", content)
    if role == "assistant":
        raise refused(where, NO_PREFILL)


def _asked(where: str, content: Any) -> Iterator[dict[str, Any]]:
    """Yield a user's message: the results of tools as messages of their own, in their order."""
    texts: list[dict[str, Any]] = []
    is_empty = True
    for place, block in _blocks(where, content):
        if block["type"] == "tool_result":
            if texts:
                yield {"role": "user", "content": _content(texts)}
                texts = []
            id = _text_of(place, block, "tool_use_id")
            result = _text_blocks(f"{place}.content", block.get("content"))
            yield {"role": "tool", "tool_call_id": id, "content": _content(result)}
            is_empty = False
        else:
            texts.append(_text_block(place, block))
    if texts or is_empty:
        yield {"role": "user", "content": _content(texts)}


def _answered(where: str, content: Any) -> dict[str, Any]:
    """Return an assistant's message as the policy's answers are recorded."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for place, block in _blocks(where, content):
        match block["type"]:
            case "thinking":
                thoughts.append(_text_of(place, block, "thinking"))
            case "redacted_thinking":
                pass
            case "tool_use":
                calls.append(_call(place, block))
            case _:
                texts.append(_text_block(place, block)["text"])
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _call(where: str, block: dict[str, Any]) -> dict[str, Any]:
    given = block.get("input")
    if not isinstance(given, dict):
        raise refused(f"{where}.input", "must be an object")
    # Arguments that were no object of JSON went out under this name.
    raw = given.get(RAW) if len(given) == 1 else None
    try:
        arguments = raw if isinstance(raw, str) else json.dumps(given)
    except RecursionError:
        raise refused(f"{where}.input", "it is nested too deeply") from None
    function = {"name": _text_of(where, block, "name"), "arguments": arguments}
    return {"id": _text_of(where, block, "id"), "type": "function", "function": function}


def _blocks(where: str, content: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place and the block of each part of a message's content."""
    if isinstance(content, str):
        yield where, {"type": "text", "text": content}
        return
    if not isinstance(content, list):
        raise refused(where, "must be a text, or a list of blocks")
    for at, block in enumerate(content):
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise refused(f"{where}[{at}]", "must be an object with a type")
        yield f"{where}[{at}]", block


def _text_blocks(where: str, content: Any) -> list[dict[str, Any]]:
    if content is None:
        return []
    return [_text_block(place, block) for place, block in _blocks(where, content)]


def _text_block(where: str, block: dict[str, Any]) -> dict[str, Any]:
    if block["type"] != "text":
        kind = f"a block of type {block['type']!r}"[:100]
        raise refused(where, f"{kind} cannot be used: {TEXT_ALONE}")
    return {"type": "text", "text": _text_of(where, block, "text")}


def _text_of(where: str, block: dict[str, Any], name: str) -> str:
    if not isinstance(block.get(name), str):
        raise refused(f"{where}.{name}", "must be a text")
    return str(block[name])


def _content(blocks: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Return blocks of text as a message's content."""
    return blocks if len(blocks) > 1 else "".join(block["text"] for block in blocks)


def _stops(stops: Any) -> list[str]:
    if (
        not isinstance(stops, list)
        or len(stops) > MAX_STOPS
        or not all(isinstance(text, str) and text for text in stops)
    ):
        raise refused("stop_sequences", f"must be a list of up to {MAX_STOPS} texts")
    return stops


def _tools(tools: Any) -> list[dict[str, Any]]:
    if not isinstance(tools, list):
        raise refused("tools", "must be a list of tools")
    return [_tool(f"tools[{at}]", tool) for at, tool in enumerate(tools)]


def _tool(where: str, tool: Any) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise refused(where, "must be an object with a name and an input_schema")
    kind, schema = tool.get("type"), tool.get("input_schema")
    if kind not in (None, "custom"):
        raise refused(
            where,
            f"a tool of type {kind!r} is Anthropic's own, and is not served here: describe it with "
            "a name and an input_schema, or leave it out",
        )
    if not isinstance(tool.get("name"), str) or not isinstance(schema, dict):
        raise refused(where, "must be an object with a name and an input_schema")
    check_schema(f"{where}.input_schema", schema)
    function = {name: tool[name] for name in ("name", "description", "strict") if name in tool}
    return {"type": "function", "function": function | {"parameters": schema}}


def _choice(choice: Any) -> dict[str, Any]:
    """Return the options of chat completions for Anthropic's `tool_choice`."""
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind == "tool":
        name = _text_of("tool_choice", choice, "name")
        chosen: Any = {"type": "function", "function": {"name": name}}
    elif kind in ("auto", "any", "none"):
        chosen = "required" if kind == "any" else kind
    else:
        raise refused("tool_choice", "its type must be auto, any, tool or none")
    options = {"tool_choice": chosen}
    if (single := choice.get("disable_parallel_tool_use")) is not None:
        options["parallel_tool_calls"] = not single
    return options


def _output(config: Any) -> dict[str, Any]:
    """Return the option of chat completions for `output_config`. Its `effort` is not used."""
    if not isinstance(config, dict):
        raise refused("output_config", "must be an object")
    if unknown := sorted(config.keys() - {"effort", "format"}):
        raise refused(f"output_config.{unknown[0]}"[:100], UNKNOWN)
    format = config.get("format")
    if format is None:
        return {}
    return {"response_format": _format("output_config.format", format)}


def _format(where: str, format: Any) -> dict[str, Any]:
    kind = format.get("type") if isinstance(format, dict) else None
    if kind != "json_schema" or not isinstance(format.get("schema"), dict):
        raise refused(where, "must be an object of type json_schema, with a `schema`")
    json_schema = {"name": "output", "schema": format["schema"]}
    return {"type": "json_schema", "json_schema": json_schema}
