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
    prompts: list[str | list[int]] = []
    """Several prompts of `completions`, each answered. Empty: the call's own prompt or messages."""
    n: int = 1
    """Answers to each prompt."""
    scores: int | None = None
    """How many of the likeliest tokens at each place come with their log-probabilities, besides the
    answer's token. None: no log-probabilities."""
    echo: bool = False
    """Whether the prompt comes before its answer, with log-probabilities if the answer has them."""
    answerless: bool = False
    """Whether the answer has no tokens."""


class TokenScore(msgspec.Struct, array_like=True):
    """A token of an answer or of a prompt, and its log-probability."""

    text: str
    logprob: float | None
    """None: a prompt's first token."""
    top: list[tuple[str, float]] = []
    """The likeliest tokens there, each with its log-probability."""


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
    choice: int = 0
    """The place of the answer among the `n` answers to each prompt, prompt after prompt."""
    scores: list[TokenScore] = []
    """Log-probabilities of the tokens that continue the earlier pieces."""
    message: dict[str, Any] | None = None
    """The whole message, instead of any text, if a parser of tool calls or reasoning has read
    it."""
    finish_reason: str | None = None
    """In a choice's last piece: vLLM's `stop` or `length`."""
    more: bool = False
    """Whether other choices go on after this choice's last piece."""
    stop: str = ""
    """In a choice's last piece: the `stop` text of the call that ended the answer, if one did."""
    prompt_tokens: int = 0
    """In the last piece of a prompt's first choice."""
    sampled_tokens: int = 0
    """In a choice's last piece."""
    failure: Failure | None = None
    """In the last piece, in place of the end."""

    @property
    def last(self) -> bool:
        """Whether nothing follows."""
        ended = self.finish_reason is not None and not self.more
        return ended or self.failure is not None

    @property
    def visible(self) -> bool:
        """Whether this piece is sent to the client."""
        is_end = self.last or self.finish_reason is not None
        return is_end or bool(self.text or self.scores) or self.message is not None
