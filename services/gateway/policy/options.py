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
    "the run trains, and a weight update may interrupt an answer, which then goes on after its "
    "last token, while vLLM applies a format from an answer's first token alone: ask a checkpoint "
    "(RUN@STEP) or a finished run, or leave it out, and ask for JSON in a message"
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


MOST_SCORES = 20
"""The likeliest tokens of each place, as vLLM gives them unless it is told otherwise."""
MOST_CHOICES = 128
"""Answers to one request."""
SCORES = ("logprobs", "top_logprobs", "echo", "n", "best_of")


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
    is_fixed: bool = False,
) -> PolicyCall:
    """Return the call of a request. `max_tokens`: the most tokens of an answer. `variables`: of the
    run's chat template. `is_fixed`: no weight update can interrupt the answer, so it may have a
    required form."""
    sampling: dict[str, Any] = {}
    taken = CONVERSATION | {"response_format"} if is_fixed else CONVERSATION
    for name, value in body.items():
        if value is None or name in UNUSED or name in taken or name in SCORES:
            continue
        if name in SAMPLING:
            fits, range = SAMPLING[name]
            if not fits(value):
                raise refused(name, f"must be {range}")
            sampling[name] = value
        elif name not in NEUTRAL or not NEUTRAL[name](value):
            reasons = REASONS | {"response_format": NO_FORMAT}
            raise refused(name[:100], reasons.get(name, NOT_DONE))
    rest = {name: value for name, value in body.items() if name in taken}
    if not is_fixed and rest.get("tool_choice") not in (None, *UNFORCED):
        raise refused("tool_choice", f"must be auto or none: {NO_FORMAT}")
    answerless = kind == "completions" and rest.get("max_tokens") == 0
    if answerless:
        del rest["max_tokens"]
    prompts = _prompts(rest) if kind == "completions" else []
    # A trained answer in a required form needs the run's sampling masks; this one is not trained.
    call = call_of(kind, rest, {VARIABLES: variables, "top_k": 1})
    if call.max_tokens is not None and call.max_tokens > max_tokens:
        raise refused(
            "max_tokens",
            f"this gateway allows {max_tokens} (its HEADRACE_POLICY_MAX_TOKENS) for one answer",
        )
    return PolicyCall(
        call=call,
        version=version,
        sampling=sampling,
        max_tokens=max_tokens,
        prompts=prompts,
        n=_n(body, max(1, len(prompts))),
        scores=_scores(kind, body),
        echo=_echo(kind, body),
        answerless=answerless,
    )


def _prompts(body: dict[str, Any]) -> list[Any]:
    """Return the prompts of a request with several, and leave the first in `body`. Each has to be
    what a request with one prompt may have."""
    prompts = body.get("prompt")
    if not isinstance(prompts, list) or not prompts or not isinstance(prompts[0], str | list):
        return []
    if len(prompts) > MOST_CHOICES:
        raise refused("prompt", f"a request has at most {MOST_CHOICES} prompts: send several")
    for prompt in prompts[1:]:
        call_of("completions", {"prompt": prompt}, {})
    body["prompt"] = prompts[0]
    return prompts


def _n(body: Mapping[str, Any], prompts: int) -> int:
    n = body.get("n", 1)
    n = 1 if n is None else n
    if type(n) is not int or not 1 <= n * prompts <= MOST_CHOICES:
        raise refused("n", f"a request has 1 to {MOST_CHOICES} answers, those of all its prompts")
    if body.get("best_of") not in (None, n):
        raise refused("best_of", "must be n: leave it out, and choose among `n` answers")
    return n


def _scores(kind: Kind, body: Mapping[str, Any]) -> int | None:
    """Return how many of the likeliest tokens at each place are wanted; None: no
    log-probabilities."""
    wanted, top = body.get("logprobs"), body.get("top_logprobs")
    if kind == "completions":
        if top is not None:
            raise refused("top_logprobs", "is an option of chat completions: use logprobs")
        most, name = None if wanted is False else wanted, "logprobs"
    elif wanted is not None and not isinstance(wanted, bool):
        raise refused("logprobs", "must be true or false; top_logprobs is a number")
    elif not wanted and top:
        raise refused("top_logprobs", "needs logprobs: true")
    else:
        most, name = (top or 0) if wanted else None, "top_logprobs"
    if most is not None and (type(most) is not int or not 0 <= most <= MOST_SCORES):
        raise refused(name, f"must be a whole number from 0 to {MOST_SCORES}")
    return most


def _echo(kind: Kind, body: Mapping[str, Any]) -> bool:
    echo = body.get("echo")
    if echo not in (None, False) and (kind != "completions" or echo is not True):
        raise refused("echo", "must be true or false, of completions")
    return echo is True
