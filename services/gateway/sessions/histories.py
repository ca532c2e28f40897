"""Find the conversation of a session that a request continues, and recognise repeated requests.
Pure."""

import math
from collections.abc import Sequence
from typing import Any

from services.contracts.config.episodes import SideCalls
from services.contracts.sessions import Call, chat_histories, digest_of, text_histories, text_of

MAX_BEGINNINGS = 4096
"""Answers of a request that are looked for in its session, the last ones: no session has more."""


def request_digest(call: Call) -> str:
    """Return a digest of the request. A request that is sent again has the same digest."""
    content = [call.kind, call.messages, call.prompt, call.tools, call.stop, call.seed]
    options = [call.max_tokens, call.side, call.structured, call.parallel_tool_calls]
    options += [call.variables] if call.variables else []
    return digest_of([*content, *options])


def is_side_call(call: Call, model: Any, rules: SideCalls) -> bool:
    """Whether `call`, from a request that names `model`, is a side call, which is not trained."""
    first = text_of(call.messages[0]) if call.messages else call.prompt
    few = rules.max_tokens is not None and (call.max_tokens or math.inf) <= rules.max_tokens
    begins = bool(rules.first_message) and isinstance(first, str) and rules.first_message in first
    return model in rules.models or few or begins


def beginnings(call: Call, lengths: Sequence[int]) -> list[tuple[int, str]]:
    """(items, digest) of the histories that `call` may continue with new messages, the longest
    first. `lengths`: of the session's texts, of /completions."""
    if call.kind == "chat":
        digests = chat_histories(call.tools, call.messages)
        # A history ends with an answer.
        last = [at for at in range(1, len(digests)) if call.messages[at - 1]["role"] == "assistant"]
        return [(at, digests[at - 1]) for at in reversed(last)][:MAX_BEGINNINGS]
    known = [length for length in lengths if length < len(call.prompt)]
    return list(zip(known, text_histories(call.prompt, known), strict=True))[::-1]


def continued(
    call: Call,
    histories: Sequence[tuple[int, str]],
    turns: Sequence[int | None],
    parents: Sequence[int],
) -> Call:
    """`call` as the next turn of the conversation with the longest of `histories`, whose last turns
    are `turns`; None: the session has no such conversation. Without any it begins one. `parents`:
    of each turn of the session; −1: none."""
    for (items, _), last in zip(histories, turns, strict=True):
        if last is not None:
            path = [last]
            while parents[path[-1]] >= 0:
                path.append(parents[path[-1]])
            call.new, call.path = items, path[::-1]
            break
    return call
