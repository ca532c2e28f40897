"""Conversations in ShareGPT's form ({"from", "value"}), as messages of OpenAI's API. Pure."""

from typing import Any

from services.contracts.strict_json import NotJSON, decode

ROLES = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "ai": "assistant",
    "observation": "tool",
    "function_response": "tool",
    "function_call": "assistant",
    "tool_call": "assistant",
}
"""The role for each name that files in ShareGPT's form give a speaker."""
CALLS = ("function_call", "tool_call")
KNOWN = ("system", "developer", "user", "assistant", "tool", "function")
"""Roles that chat templates know."""


def as_messages(value: Any) -> Any:
    """Give a conversation, or a single turn, `role` and `content`. Anything else comes back
    unchanged. Raises ValueError, in words that follow the row's place."""
    if isinstance(value, dict):
        return _message(1, value)
    if isinstance(value, list):
        return [
            _message(number, turn) if isinstance(turn, dict) else turn
            for number, turn in enumerate(value, 1)
        ]
    return value


def _message(number: int, turn: dict[str, Any]) -> dict[str, Any]:
    foreign = "from" in turn and "value" in turn and "role" not in turn
    name = turn["from"] if foreign else turn.get("role")
    known = isinstance(name, str) and name.strip().lower()
    if not foreign and known not in ROLES:
        return turn
    role = ROLES.get(known or "", known)
    if role not in KNOWN:
        raise ValueError(
            f"message {number} is from {name!r:.60}, and known are {', '.join(ROLES)}, "
            f"{', '.join(KNOWN)}: rename it, or remove the row"
        )
    rest = {key: value for key, value in turn.items() if key not in ("from", "value", "role")}
    content = turn["value"] if foreign else turn.get("content")
    if known in CALLS and not rest.get("tool_calls"):
        return {**rest, "role": role, "content": "", "tool_calls": _calls(number, content)}
    return {**rest, "role": role, "content": content}


def _calls(number: int, content: Any) -> list[dict[str, Any]]:
    """Parse the text of a turn `function_call` to its calls."""
    try:
        decoded = decode(content.encode()) if isinstance(content, str) else content
    except NotJSON as error:
        raise ValueError(
            f"message {number} is a function call that is no JSON ({error}): write it as "
            '{"name": "…", "arguments": {…}}, or remove the row'
        ) from None
    calls = decoded if isinstance(decoded, list) else [decoded]
    if not calls or not all(isinstance(c, dict) and isinstance(c.get("name"), str) for c in calls):
        raise ValueError(
            f"message {number} is a function call without a name: write it as "
            '{"name": "…", "arguments": {…}}, or remove the row'
        )
    return [
        {"type": "function", "function": {"name": c["name"], "arguments": c.get("arguments", {})}}
        for c in calls
    ]
