"""Sessions of agents, as gateway and rollout workers exchange them through Redis. Pure.

A group's sessions belong to one attempt. A session is a graph of turns: a turn continues an earlier
turn or begins a conversation.
"""

import hashlib
import json
import re
import secrets
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

FINISH = "finish"
"""The call that scores a group whose sessions have ended has this name instead of a turn's
digest."""

_REASONING = re.compile("(</?think>)")
MOST_NESTED = 64
"""Levels of a call's arguments that are compared as JSON; deeper ones are compared as text."""


class Turn(msgspec.Struct, kw_only=True):
    """An answer as it was sampled. Ids are little-endian int32, log-probabilities float32."""

    parent: int = -1
    """The number of the turn that it continues; −1: it begins a conversation."""
    kept: int = 0
    """How many of the ids that the conversation had after that turn its prompt begins with: all of
    them, but for `history: template`."""
    added: bytes
    """The ids of its prompt after these: of a conversation's first turn the whole prompt, of later
    ones the new messages."""
    token_ids: bytes
    """The sampled ids."""
    logprobs: bytes
    versions: list[tuple[str, int, int]]
    """(version tag, start, end) of the sampled ids."""
    sampling_mask: bytes | None = None
    """`SamplingMask.pack`, with `sampling.top_k`."""
    finish_reason: str
    """vLLM's: `stop` or `length`."""
    stop: str = ""
    """The `stop` text of the call that ended the answer, if one did."""
    message: dict[str, Any]
    """The answer as the client got it: an assistant's message, or {"text": …}."""
    prompt_tokens: int
    created: int
    side: bool = False
    """Whether it is a side call, which is not trained."""

    @property
    def prompt(self) -> list[int]:
        """`added` as numbers."""
        return list(map(int, ids(self.added)))

    @property
    def sampled(self) -> npt.NDArray[np.int32]:
        """`token_ids` as numbers."""
        return ids(self.token_ids)


class SampledTurn(NamedTuple):
    """A turn that a worker has sampled, with what its session needs to know."""

    turn: Turn
    history: str
    """The digest of the conversation with this turn."""
    length: int | None
    """The length of the conversation's text. None for chats."""
    oldest: tuple[str, int]
    """(lineage, version) of the turn's oldest token."""


class Call(msgspec.Struct, kw_only=True):
    """A request to a worker: the next turn of a session, or the end of its group."""

    kind: Literal["chat", "completions", "finish"]
    path: list[int] = []
    """The turns of the conversation that it continues, by number, the first one first."""
    messages: list[dict[str, Any]] = []
    prompt: str | list[int] = ""
    """With kind `completions`: text or token ids instead of messages."""
    new: int = 0
    """The first of `messages` (characters or ids of `prompt`) that these turns do not have."""
    tools: list[dict[str, Any]] = []
    stop: list[str] = []
    seed: int | None = None
    max_tokens: int | None = None
    structured: dict[str, Any] | None = None
    """The required form of the answer: vLLM's `json` (a schema) or `json_object`, or a call of a
    tool, as in `tool_choice`. With None any text is valid."""
    parallel_tool_calls: bool = True
    """Without it the client gets the first of an answer's tool calls alone, as from vLLM."""
    variables: dict[str, Any] = {}
    """Variables of the chat template that differ from the run's."""
    side: bool = False
    """As of Turn."""


class Reward(msgspec.Struct, kw_only=True):
    """The reward that a client sends for a session."""

    reward: float | None = None
    """None if the client could not determine the reward: the session is then skipped in
    training."""
    components: dict[str, float] = {}
    error: str = ""
    """The reason for a missing reward."""


LIVE = "l"
"""Begins the names of sessions that applications open; those of attempts are hexadecimal."""


def is_live(attempt: str) -> bool:
    """Whether this is a session that an application has opened: it is leased once it has ended and
    has a reward."""
    return attempt.startswith(LIVE)


def session_of(attempt: str) -> str:
    """Return the name of the sessions that an attempt submits. A live session is leased as
    `SESSION.TOKEN`, so that each of its leases has its own name. Any other attempt has the name of
    its sessions."""
    return attempt.partition(".")[0]


def live_id(name: str) -> str:
    """The name of a live session that its application calls `name`; without one a new name."""
    return LIVE + (digest_of(name)[:16] if name else secrets.token_hex(8))


class SessionName(NamedTuple):
    """A session of an attempt, by its place in the group."""

    run: str
    attempt: str
    number: int


def session_id(run: str, attempt: str, index: int) -> str:
    """The name of session `index` of an attempt."""
    return f"{run}-{attempt}-{index}"


def parse_session_id(text: str) -> SessionName:
    """The inverse of `session_id`. Raises ValueError."""
    run, attempt, index = text.rsplit("-", 2)
    if not (run and attempt.isalnum() and index.isascii() and index.isdigit() and len(index) < 6):
        raise ValueError(f"{text!r} is no session")
    return SessionName(run, attempt, int(index))


def call_id(attempt: str, index: int, digest: str) -> str:
    """The name of a call in Redis."""
    return f"{attempt}/{index}/{digest}"


def ids(data: bytes) -> npt.NDArray[np.int32]:
    """Token ids."""
    return np.frombuffer(data, "<i4")


def packed(numbers: Any, kind: str = "<i4") -> bytes:
    """The inverse of `ids`; with `<f4`, of log-probabilities."""
    return np.asarray(numbers, kind).tobytes()


def tokens_of(path: Iterable[Turn]) -> list[int]:
    """Return the token ids of a conversation with the turns `path`, including its last answer."""
    tokens: list[int] = []
    for turn in path:
        del tokens[turn.kept :]
        tokens += turn.prompt
        tokens += turn.sampled.tolist()
    return tokens


def normalized(message: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a message by which conversations are compared. Clients drop empty fields
    or add their own fields when they send an answer back."""
    compared: dict[str, Any] = {"role": message.get("role"), "content": text_of(message)}
    if compared["role"] == "assistant" and len(parts := _REASONING.split(compared["content"])) > 1:
        # Pydantic AI takes reasoning out of an answer, and puts it back between other blanks.
        compared["content"] = "".join(part.strip() for part in parts)
    if calls := message.get("tool_calls"):
        # Anthropic's clients drop a blank text beside calls.
        compared["content"] = compared["content"] if compared["content"].strip() else ""
        compared["tool_calls"] = [
            [call.get("id"), call["function"]["name"], _read(call["function"]["arguments"])]
            for call in calls
        ]
    for name in ("name", "tool_call_id"):
        # Many frameworks send an answer back with the name of the agent that asked for it.
        if message.get(name) is not None and (name, compared["role"]) != ("name", "assistant"):
            compared[name] = message[name]
    return compared


def _read(arguments: str) -> Any:
    """Parse the arguments of a call, so that spelling does not matter: many frameworks send them
    back with other blanks, with 1 for 1.0, or with {} for empty arguments. Return the value in a
    list. Return the text itself if it is invalid JSON, or nested so deeply that parsers differ on
    it."""
    try:
        value = json.loads(arguments or "{}", parse_float=_number)
    except (ValueError, RecursionError):
        return arguments
    level = [value]
    for _ in range(MOST_NESTED):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return [{} if value is None else value]
    return arguments


def _number(text: str) -> float:
    number = float(text)
    return int(number) if number.is_integer() else number


def text_of(message: dict[str, Any]) -> str:
    """A message's text, whether it came as one or in parts."""
    content = message.get("content")
    if isinstance(content, list):
        # A part of type `text` has a `text`, one of type `refusal` a `refusal`.
        return "".join(part[part["type"]] for part in content)
    return content or ""


def chat_histories(tools: list[dict[str, Any]], messages: list[dict[str, Any]]) -> list[str]:
    """A digest of `tools` and the first message, of `tools` and the first two, and so on. Two
    conversations with the same beginning have the same digests of that beginning."""
    digests = [digest_of(tools)]
    for message in messages:
        digests.append(digest_of([digests[-1], normalized(message)]))
    return digests[1:]


def text_histories(prompt: str | list[int], lengths: Sequence[int]) -> list[str]:
    """A digest of the beginning of `prompt`, for each of the rising `lengths`."""
    hashed, digests = hashlib.sha256(b"text" if isinstance(prompt, str) else b"ids"), []
    for start, end in pairwise([0, *lengths]):
        part = prompt[start:end]
        # JSON may hold a lone surrogate, which UTF-8 cannot encode.
        encoded = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else packed(part)
        hashed.update(encoded)
        digests.append(hashed.hexdigest()[:32])
    return digests


def digest_of(value: Any) -> str:
    """A digest of anything that JSON can say."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
