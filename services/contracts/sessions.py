"""Sessions of agents: what gateway and rollout workers exchange of them through Redis.

A group's sessions belong to one attempt. A session is one conversation: turn after turn, each the
tokens that came before the answer and the answer's own. Pure.
"""

import hashlib
import json
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

FINISH = "finish"
"""In place of a turn's digest: the call that scores a group whose sessions have ended."""


class Turn(msgspec.Struct, kw_only=True):
    """An answer as it was sampled. Ids are little-endian int32, log-probabilities float32."""

    added: bytes
    """The ids between the session's tokens so far and the answer: of the first turn the whole
    prompt, of later ones the new messages."""
    token_ids: bytes
    """The sampled ids."""
    logprobs: bytes
    versions: list[tuple[str, int, int]]
    """(version tag, start, end) of the sampled ids."""
    sampling_mask: bytes | None = None
    """`SamplingMask.pack`, with `sampling.top_k`."""
    finish_reason: str
    """vLLM's: `stop` or `length`."""
    message: dict[str, Any]
    """The answer as the client got it: an assistant's message, or {"text": …}."""
    prompt_tokens: int
    created: int

    @property
    def prompt(self) -> list[int]:
        """`added` as numbers."""
        return list(map(int, ids(self.added)))

    @property
    def sampled(self) -> npt.NDArray[np.int32]:
        """`token_ids` as numbers."""
        return ids(self.token_ids)


class Call(msgspec.Struct, kw_only=True):
    """What a worker is asked for: the next turn of a session, or the end of its group."""

    kind: Literal["chat", "completions", "finish"]
    turn: int = 0
    """How many turns the session has."""
    messages: list[dict[str, Any]] = []
    prompt: str | list[int] = ""
    """Of kind `completions`: text or token ids, in place of messages."""
    new: int = 0
    """The first of `messages` (characters or ids of `prompt`) that the session does not have."""
    tools: list[dict[str, Any]] = []
    stop: list[str] = []
    seed: int | None = None
    max_tokens: int | None = None


class Reward(msgspec.Struct, kw_only=True):
    """What a client says that a session has earned."""

    reward: float | None = None
    """None: it could not be found out, and the session is not trained."""
    components: dict[str, float] = {}
    error: str = ""
    """Why there is no reward."""


class Standing(msgspec.Struct, kw_only=True):
    """Where a conversation stands after its last turn."""

    items: int
    """Messages (characters or ids of a prompt) so far, the last answer included."""
    digest: str
    """Of these, and of the tools."""


def session_id(run: str, attempt: str, index: int) -> str:
    """The name of session `index` of an attempt."""
    return f"{run}-{attempt}-{index}"


def parse_session_id(text: str) -> tuple[str, str, int]:
    """(run, attempt, index). Raises ValueError for anything else."""
    run, attempt, index = text.rsplit("-", 2)
    if not (run and attempt.isalnum() and index.isascii() and index.isdigit() and len(index) < 6):
        raise ValueError(f"{text!r} is no session")
    return run, attempt, int(index)


def call_id(attempt: str, index: int, digest: str) -> str:
    """The name of a call in Redis."""
    return f"{attempt}/{index}/{digest}"


def ids(data: bytes) -> npt.NDArray[np.int32]:
    """Token ids."""
    return np.frombuffer(data, "<i4")


def packed(numbers: Any, kind: str = "<i4") -> bytes:
    """The inverse of `ids`; with `<f4`, of log-probabilities."""
    return np.asarray(numbers, kind).tobytes()


def normalized(message: dict[str, Any]) -> dict[str, Any]:
    """What of a message makes a conversation the same or another one: clients leave out empty
    fields, or add some of their own, when they send an answer back."""
    found: dict[str, Any] = {"role": message.get("role"), "content": text_of(message)}
    if calls := message.get("tool_calls"):
        found["tool_calls"] = [
            [call.get("id"), call["function"]["name"], call["function"]["arguments"]]
            for call in calls
        ]
    for name in ("name", "tool_call_id"):
        if message.get(name) is not None:
            found[name] = message[name]
    return found


def text_of(message: dict[str, Any]) -> str:
    """A message's text, whether it came as one or in parts."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part["text"] for part in content)
    return content or ""


def conversation_digest(tools: list[dict[str, Any]], messages: list[dict[str, Any]]) -> str:
    """Equal for two conversations of which one continues the other."""
    return digest_of([tools, [normalized(message) for message in messages]])


def digest_of(value: Any) -> str:
    """A digest of anything that JSON can say."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
