"""Calls of the policy as an endpoint: what gateway and rollout workers exchange of them through
Redis. Nothing of them is trained. Pure."""

from typing import Any

import msgspec

from services.contracts.sessions import Call


class PolicyCall(msgspec.Struct, kw_only=True):
    """A question to the policy that a run trains."""

    call: Call
    version: int | None = None
    """The only version that may answer; None: any."""
    sampling: dict[str, Any] = {}
    """vLLM's sampling parameters that the client chose."""
    max_tokens: int
    """The most that an answer may have here, whatever the client asks for."""
    count: bool = False
    """Whether only the prompt's tokens are counted: nothing is sampled."""


class Failure(msgspec.Struct, kw_only=True):
    """The reason why a call fails before its answer or within the answer."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None


class Piece(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A part of an answer, in the order in which it is sampled. An empty one says that the worker
    is at work."""

    version: int | None = None
    """That answers; in the first piece."""
    text: str = ""
    """The text that continues the earlier pieces."""
    message: dict[str, Any] | None = None
    """The whole message, instead of any text, if a parser of tool calls or reasoning has read
    it."""
    finish_reason: str | None = None
    """In the last piece: vLLM's `stop` or `length`."""
    stop: str = ""
    """In the last piece: the `stop` text of the call that ended the answer, if one did."""
    prompt_tokens: int = 0
    """In the last piece."""
    sampled_tokens: int = 0
    """In the last piece."""
    failure: Failure | None = None
    """In the last piece, in place of the end."""

    @property
    def last(self) -> bool:
        """Whether nothing follows."""
        return self.finish_reason is not None or self.failure is not None

    @property
    def visible(self) -> bool:
        """Whether this piece is sent to the client."""
        return self.last or bool(self.text) or self.message is not None


def cut_at(max_tokens: int) -> str:
    """Say that `max_tokens` cut an answer of `headrace chat`."""
    return f"the answer was cut at {max_tokens:,} tokens: --max-tokens allows more"
