"""Messages of a chat, in any of the forms that OpenAI's API takes them in. Pure."""

import json
from typing import Any

Chat = list[dict[str, Any]]


def for_template(chat: Chat) -> Chat:
    """`chat` as templates expect it, in whatever form OpenAI's API takes it: contents in one piece,
    and arguments of calls as objects. Raises ValueError for a content that is not all text."""
    return [_message(number, message) for number, message in enumerate(chat, 1)]


def _message(number: int, message: dict[str, Any]) -> dict[str, Any]:
    whole = {**message, "content": in_one_piece(number, message.get("content"))}
    # Some templates take any list for calls, an empty one as well.
    if calls := whole.pop("tool_calls", None):
        whole["tool_calls"] = [_call(call) for call in calls] if isinstance(calls, list) else calls
    return whole


def in_one_piece(number: int, content: Any) -> Any:
    """The content of message `number`. Raises as `for_template`."""
    if not isinstance(content, list):
        return "" if content is None else content
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else part
        # A part of type `text` has a `text`, one of type `refusal` a `refusal`.
        if kind not in ("text", "refusal") or not isinstance(part.get(kind), str):
            raise ValueError(
                f"message {number} has a part that is no text ({kind!r}), and models here read "
                "text alone: take the part out, or remove the row"
            )
    return "".join(part[part["type"]] for part in content)


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(text := function.get("arguments"), str):
        return call
    try:
        return {**call, "function": {**function, "arguments": json.loads(text)}}
    except ValueError:
        return call
    except RecursionError:
        raise ValueError("the arguments of a tool call are nested too deeply") from None
