"""Renders messages to token ids, so that later turns extend what was sampled. Pure, except for the
tokenizer.

A sampled answer is never rendered again: its text may have other ids than the policy chose. To find
what a turn adds, a stand-in conversation (a question, an answer, then the new messages) is
rendered, and everything after the end of its answer is taken.

Templates are rendered in the event loop's thread, the only thread in which their time is limited.
Long texts are tokenized in another thread: 100,000 tokens take tenths of a second.
"""

import asyncio
import re
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from rollout.vllm.model_files import TokenizerLike
from services.contracts.rows.messages import Chat
from services.contracts.rows.rendering import (
    NO_TEMPLATE,
    chat_text,
    plain_text,
    text_ids,
    unread_variables,
)
from services.contracts.sessions import digest_of

QUESTION, ANSWER = "a", "b"
"""The stand-in's texts, without special tokens."""
LONG_TEXT = 1 << 14
"""Characters. Tokenizing a shorter text takes less time than a change of threads."""
MOST_KNOWN = 256
"""Stand-ins of one tokenizer whose ends are cached: two for each set of tools."""
Tools = list[dict[str, Any]]
_UNUSUAL = re.compile(r"[^\w.:-]")
"""Characters to replace in the name and the id of a call. Each special token has one."""
_known: WeakKeyDictionary[TokenizerLike, dict[str, tuple[int, int]]] = WeakKeyDictionary()


class UnusableParameter(ValueError):
    """A parameter of a request that its run cannot use."""

    def __init__(self, param: str, reason: str) -> None:
        super().__init__(reason)
        self.param = param


class UnreadVariable(UnusableParameter):
    """A variable that the chat template does not mention."""

    def __init__(self, name: str) -> None:
        super().__init__(
            name if name == "reasoning_effort" else "chat_template_kwargs",
            f"the model's chat template does not mention {name}, so it would change nothing: leave "
            "it out",
        )


async def tokens(text: str, tokenizer: TokenizerLike, **options: Any) -> list[int]:

    def ids() -> list[int]:
        return list(tokenizer(text, **options)["input_ids"])

    return ids() if len(text) < LONG_TEXT else await asyncio.to_thread(ids)


async def text_tokens(text: str, tokenizer: TokenizerLike) -> list[int]:
    """Return the ids of a prompt without a template."""
    if len(text) < LONG_TEXT:
        return text_ids(text, tokenizer)
    return await asyncio.to_thread(text_ids, text, tokenizer)


async def opening(
    messages: Chat,
    tools: Tools,
    tokenizer: TokenizerLike,
    variables: Mapping[str, Any] | None = None,
) -> list[int]:
    """Return the prompt of a session's first turn. `variables` of the chat template replace the
    run's. Raises ValueError if the template refuses the messages, or does not mention a
    variable."""
    variables = variables or {}
    _check_read(variables, tokenizer)
    if tokenizer.chat_template:
        return await _rendered(messages, tools, tokenizer, True, variables)
    if tools:
        raise ValueError(NO_TEMPLATE)
    return await text_tokens(plain_text(messages), tokenizer)


async def added(
    messages: Chat,
    new: int,
    tools: Tools,
    last: Sequence[int],
    ends: Collection[int],
    tokenizer: TokenizerLike,
    variables: Mapping[str, Any] | None = None,
) -> list[int]:
    """Return the ids between the last answer (`last`) and the next answer: `messages` from number
    `new` on. Message `new` - 1 is the last answer. `ends` are end-of-sequence ids; `variables` as
    of `opening`.

    Raises ValueError if the template refuses the messages, or ends an answer without such an id.
    """
    variables = variables or {}
    _check_read(variables, tokenizer)
    if not tokenizer.chat_template:
        text = "\n\n" + plain_text(messages[new:])
        return await tokens(text, tokenizer, add_special_tokens=False)
    question: dict[str, Any] = {"role": "user", "content": QUESTION}
    # Templates look up the call of a tool's message. The arguments do not matter.
    calls = [_stand_in(call) for call in messages[new - 1].get("tool_calls") or []]
    answer = _answer(calls)
    stand_in = partial(_ends_of, tools=tools, ends=ends, tokenizer=tokenizer, variables=variables)
    asked, _ = await stand_in([question])
    try:
        ends_with_answer, ending = await stand_in([question, answer])
    except ValueError:
        if len(calls) < 2:
            raise
        # Llama's template takes one call an answer, and the policy may make several.
        answer = _answer(calls[:1])
        ends_with_answer, ending = await stand_in([question, answer])
    if ends_with_answer != asked + 1:
        raise ValueError(
            "the chat template does not end an answer with one end-of-sequence token, so that no "
            "second turn can follow what was sampled"
        )
    follows = [message | _plain_id(message, "tool_call_id") for message in messages[new:]]
    whole = await _rendered([question, answer, *follows], tools, tokenizer, True, variables)
    places = _ends_in(whole, ends)
    end = places[asked] if len(places) > asked else 0
    # Some templates move tools before the newest message, and a tool may spell an end of sequence.
    if not end or (tools and _shown(whole[end - 1], tokenizer) != _shown(ending, tokenizer)):
        raise ValueError(
            "the chat template does not write the last answer where it does so without the new "
            "messages: is an end-of-sequence token spelled in the description of a tool?"
        )
    # An answer that was truncated, or stopped at a text, lacks its end.
    ended = len(last) > 0 and int(last[-1]) in ends
    return whole[end + 1 :] if ended else whole[end:]


def _shown(id: int, tokenizer: TokenizerLike) -> str:
    return str(tokenizer.decode([id])).strip()


def _check_read(variables: Mapping[str, Any], tokenizer: TokenizerLike) -> None:
    """Raise UnreadVariable if the chat template does not mention a variable."""
    if unread := unread_variables(variables, tokenizer):
        raise UnreadVariable(unread[0])


async def _rendered(
    messages: Chat,
    tools: Tools,
    tokenizer: TokenizerLike,
    follows: bool,
    variables: Mapping[str, Any],
) -> list[int]:
    text = chat_text(messages, tokenizer, tools or None, follows, variables)
    # The template has written the special tokens.
    return await tokens(text, tokenizer, add_special_tokens=False)


def _answer(calls: list[dict[str, Any]]) -> dict[str, Any]:
    answer: dict[str, Any] = {"role": "assistant", "content": ANSWER}
    return answer | {"tool_calls": calls} if calls else answer


def _stand_in(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call whose name and id spell no special token, which the policy may have spelled in
    ordinary tokens. A client's further keys are dropped for the same reason."""
    name = _UNUSUAL.sub("_", call["function"]["name"])
    return {"type": "function", "function": {"name": name, "arguments": "{}"}} | _plain_id(
        call, "id"
    )


def _plain_id(of: dict[str, Any], name: str) -> dict[str, str]:
    return {name: _UNUSUAL.sub("_", of[name])} if of.get(name) else {}


async def _ends_of(
    stand_in: Chat,
    tools: Tools,
    ends: Collection[int],
    tokenizer: TokenizerLike,
    variables: Mapping[str, Any],
) -> tuple[int, int]:
    """Return how many end-of-sequence tokens a stand-in has, and the id before the last one. A
    stand-in without calls is the same in all turns, so its result is cached."""
    known = _known.setdefault(tokenizer, {})
    name = digest_of([stand_in, tools, sorted(ends), variables])
    if name not in known:
        ids = await _rendered(stand_in, tools, tokenizer, False, variables)
        places = _ends_in(ids, ends)
        result = len(places), ids[places[-1] - 1] if places else -1
        if any("tool_calls" in message for message in stand_in):
            return result
        while len(known) >= MOST_KNOWN:
            known.pop(next(iter(known)))
        known[name] = result
    return known[name]


def _ends_in(ids: list[int], ends: Collection[int]) -> list[int]:
    """Return the places of end-of-sequence tokens."""
    return [place for place, id in enumerate(ids) if id in ends]
