"""Turns requests of the OpenAI API into calls of the policy. Pure. Raises SessionProblem.

The answers are not trained, so a client may choose vLLM's own sampling parameters.
"""

from collections.abc import Callable, Mapping
from typing import Any

from services.contracts.policy_calls import PolicyCall
from services.gateway.openai.bodies import Kind
from services.gateway.openai.requests import (
    EFFORT,
    NEUTRAL,
    REASONS,
    TAKEN,
    UNFORCED,
    UNUSED,
    VARIABLES,
    call_of,
    refused,
)

CONVERSATION = TAKEN | {"tool_choice", VARIABLES, EFFORT}
"""Keys that `openai.requests` checks."""

MOST_TOKENS = (1 << 31) - 1

NOT_DONE = "the policy's endpoint cannot do this: leave it out"
NO_FORMAT = (
    "the policy's endpoint takes none: a weight update may interrupt an answer, which then goes on "
    "after its last token, and vLLM applies a format from an answer's first token alone; leave it "
    "out, and ask for JSON in a message"
)


def _between(low: float, high: float) -> Callable[[Any], bool]:
    def fits(value: Any) -> bool:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and low <= value <= high

    return fits


SAMPLING: dict[str, tuple[Callable[[Any], bool], str]] = {
    "temperature": (_between(0, 10), "a number from 0 to 10"),
    "top_p": (_between(1e-6, 1), "a number above 0, at most 1"),
    "top_k": (lambda value: type(value) is int and -1 <= value < 1 << 31, "a whole number"),
    "min_p": (_between(0, 1), "a number from 0 to 1"),
    "presence_penalty": (_between(-2, 2), "a number from -2 to 2"),
    "frequency_penalty": (_between(-2, 2), "a number from -2 to 2"),
    "repetition_penalty": (_between(0.01, 10), "a number from 0.01 to 10"),
}
"""vLLM's sampling parameters that a client may choose."""


def count_call(body: Mapping[str, Any], variables: Mapping[str, Any] | None = None) -> PolicyCall:
    """Return a call that counts the tokens of a chat's prompt."""
    call = policy_call("chat", body, None, MOST_TOKENS, variables)
    call.count = True
    return call


def policy_call(
    kind: Kind,
    body: Mapping[str, Any],
    version: int | None,
    max_tokens: int,
    variables: Mapping[str, Any] | None = None,
) -> PolicyCall:
    """Return the call of a request. `max_tokens`: the most tokens of an answer. `variables`: of the
    run's chat template."""
    sampling: dict[str, Any] = {}
    for name, value in body.items():
        if value is None or name in UNUSED or name in CONVERSATION:
            continue
        if name in SAMPLING:
            fits, range = SAMPLING[name]
            if not fits(value):
                raise refused(name, f"must be {range}")
            sampling[name] = value
        elif name not in NEUTRAL or not NEUTRAL[name](value):
            reasons = REASONS | {"response_format": NO_FORMAT}
            raise refused(name[:100], reasons.get(name, NOT_DONE))
    rest = {name: value for name, value in body.items() if name in CONVERSATION}
    if rest.get("tool_choice") not in (None, *UNFORCED):
        raise refused("tool_choice", "must be auto or none: leave it out")
    call = call_of(kind, rest, {VARIABLES: variables})
    if call.max_tokens is not None and call.max_tokens > max_tokens:
        raise refused(
            "max_tokens",
            f"this gateway allows {max_tokens} (its HEADRACE_POLICY_MAX_TOKENS) for one answer",
        )
    return PolicyCall(call=call, version=version, sampling=sampling, max_tokens=max_tokens)
