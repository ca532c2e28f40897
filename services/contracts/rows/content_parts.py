"""Find out whether a chat template reads contents as text or as lists of parts. Pure.

OpenAI's API has both. A template that loops over parts silently drops a text. vLLM gives all
messages in parts if the template's syntax has such a loop. Here a probe of each role decides: a
template may loop over the user's content and join the system's as text. A template that takes both
gets text.
"""

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from services.contracts.rows.messages import Chat
from services.contracts.rows.template_limits import TemplateTooGreedy

Written = Callable[[Chat, bool], str]
"""The template: from messages, and whether an answer follows, to text."""
PROBE = "headrace-probe"
ROLES = ("user", "system", "assistant", "tool")
MOST_KNOWN = 8
"""Templates of one tokenizer that are remembered."""
CALL = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": {}}}
_known: WeakKeyDictionary[object, dict[object, frozenset[str]]] = WeakKeyDictionary()


def roles_in_parts(tokenizer: object, state: object, written: Written) -> frozenset[str]:
    """The roles whose contents the template reads in parts alone. `state` names the template and
    its variables; the answer for it is remembered as long as the tokenizer. Raises
    TemplateTooGreedy."""
    known = _known.setdefault(tokenizer, {})
    if state not in known:
        if len(known) >= MOST_KNOWN:
            known.clear()
        known[state] = _probed(written)
    return known[state]


def in_parts(chat: Chat, roles: frozenset[str]) -> Chat:
    """Return `chat` with the contents of `roles` in parts."""
    if not roles:
        return chat
    return [
        {**message, "content": [{"type": "text", "text": message["content"]}]}
        if message.get("role") in roles and isinstance(message.get("content"), str)
        else message
        for message in chat
    ]


def _probed(written: Written) -> frozenset[str]:
    in_lists: frozenset[str] = frozenset()
    for role in ROLES:
        chat = _probing_chat(role)
        more = in_lists | {role}
        if not _writes_probe(chat, in_lists, written) and _writes_probe(chat, more, written):
            in_lists = more
    return in_lists


def _writes_probe(chat: Chat, roles: frozenset[str], written: Written) -> bool:
    """Whether the template writes the probe, if it gets the contents of `roles` in parts."""
    try:
        text = written(in_parts(chat, roles), chat[-1]["role"] != "assistant")
    except TemplateTooGreedy:
        raise
    except Exception:  # a template is a program, and raises what it likes
        return False
    # The whole list may be written, as Python or as JSON.
    return PROBE in text and not any(f"{quote}{PROBE}{quote}" in text for quote in "'\"")


def _probing_chat(role: str) -> Chat:
    """A short chat in which a message of this role says the probe."""
    asked: dict[str, Any] = {"role": "user", "content": "a"}
    probe = {"role": role, "content": PROBE}
    match role:
        case "user":
            return [probe]
        case "system":
            return [probe, asked]
        case "tool":
            call = {"role": "assistant", "content": "", "tool_calls": [CALL]}
            return [asked, call, {**probe, "tool_call_id": CALL["id"], "name": "f"}]
        case _:
            return [asked, probe]
