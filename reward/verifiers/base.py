"""The two protocols of verifiers, built-in and own.

A `Verifier` computes. It runs inside a worker process that may be killed at any moment, so it needs
no timeout of its own, may block, may use much memory, and must leave nothing outside its process. A
`RemoteVerifier` asks a judge, a reward model or another service. It runs as a coroutine in the
service's event loop and must never block it. Both return the reward of the *answer*. An exception
counts as a failure of the verifier: status `error`, without reward.
"""

import math
from abc import ABC, abstractmethod
from enum import StrEnum
from typing import Any, ClassVar, Generic, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from reward.errors import brief
from services.contracts.scores import MOST_REWARD, ScoreStatus, is_reward
from services.contracts.thoughts import answer_of

Message = dict[str, Any]


class Item(msgspec.Struct, array_like=True, frozen=True):
    """One completion to score: all that a verifier sees, and as it is sent to a worker."""

    verifier: str
    prompt: str | list[Message]
    completion: str
    answer: Any
    params: dict[str, Any]
    columns: dict[str, Any] = {}
    """The dataset row's other columns."""
    prefill: str = ""
    """The beginning of the answer that the prompt already has, such as `<think>`."""
    truncated: bool = False
    """Whether the completion was cut off: then its last words are not its answer."""

    @property
    def said(self) -> str:
        """The completion after its thoughts. Empty if the last thought has no end: what a thought
        holds is no answer."""
        return answer_of(self.completion, self.prefill) or ""


class Step(StrEnum):
    """The work on an item."""

    SCORE = "score"
    REFERENCE = "reference"
    """Check the reference alone."""
    RUN = "run"
    """Run the completion as a program; what it prints is the verdict's detail. Of `code` alone."""


class Verdict(msgspec.Struct, array_like=True, frozen=True):
    """A verifier's result for one item. `reward` is None only for `error`."""

    status: ScoreStatus
    reward: float | None
    detail: str = ""
    components: dict[str, float] = {}
    parts: list[tuple[int, float]] = []
    """Scores of parts of the completion, for dense rewards: pairs of a part's end, in characters,
    and its score, in order."""


class BadReferenceError(ValueError):
    """The dataset's reference answer cannot be used. The message says why, and names its value."""


class ItemParams(BaseModel):
    """The parameters of an item. Unknown ones are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    timeout: float


class VerifierParams(ItemParams):
    """What every `Verifier` takes. A verifier's own parameters derive from this."""

    timeout: float = Field(
        5.0,
        gt=0,
        le=600,
        description="Seconds (wall clock) that one item may take. Then its process is killed, and "
        "the item tried once more on a fresh one.",
    )
    on_timeout: float | None = Field(
        0.0,
        allow_inf_nan=False,
        description="The reward of an answer that could not be compared in time, twice; null masks "
        "it from the loss (status `error`).",
    )


class RemoteParams(ItemParams):
    """What every `RemoteVerifier` takes. A verifier's own parameters derive from this."""

    timeout: float = Field(
        60.0,
        gt=0,
        le=3600,
        description="Seconds (wall clock) that one item may take from when its turn has come, "
        "further attempts included. Then it is an `error`, without reward.",
    )


P = TypeVar("P", bound=VerifierParams)
R = TypeVar("R", bound=ItemParams)


class Verifier(ABC, Generic[P]):
    """Scores one kind of answer. Instances hold no state between items but caches."""

    name: ClassVar[str]
    """What requests call it."""
    description: ClassVar[str]
    """One line for `GET /v1/verifiers`."""
    Params: type[P]
    """Its parameters; their JSON schema is published."""
    reference: ClassVar[str] = ""
    """The parameter that replaces the answer when it is set. A submission checks it with
    `check_reference`, on an item without an answer."""
    slow: ClassVar[bool] = False
    """Whether its items usually take longer than a fifth of a second: then they are kept off
    the workers that are there for quick ones."""
    available: bool = True
    """Whether items can be scored on this machine; see `probe`."""
    lacks_extra: bool = False
    """Whether it is unavailable only because an optional package is not installed, which is no
    fault of the service."""
    notice: str = ""
    """What the operator should know about its use on this machine, or why it cannot be used."""

    def deadline(self, params: P) -> float:
        """Seconds that one item may take until its process is killed. More than `timeout` for a
        verifier that keeps to that itself, and does not count what it waits for a CPU."""
        return params.timeout

    def probe(self) -> None:
        """Find out, in the service's process before it listens, whether it works on this machine;
        set `available` and `notice`."""

    def warm(self) -> None:
        """Import and build everything for scoring, once, before worker processes are forked."""

    def check_reference(self, item: Item, params: P) -> None:
        """Raise BadReferenceError unless `item.answer` (or `item.columns`) can serve as a
        reference. Does not look at the prompt and the completion. The default accepts any.

        An upload and a submission run it on all rows: it should take less than a millisecond. A
        fresh worker also runs it, alone, after an item did not finish twice: if it does not finish
        either, the reference or `params` are to blame.
        """

    def output(self, item: Item, params: P) -> str:
        """What the program in `item.completion` prints, and how it failed if it did."""
        raise NotImplementedError(f"verifier {self.name!r} runs no programs")

    @abstractmethod
    def score(self, item: Item, params: P) -> Verdict:
        """The verdict on `item`. Raises BadReferenceError for a reference that cannot be used."""


class RemoteVerifier(ABC, Generic[R]):
    """Has completions scored elsewhere. Lives in the service's event loop, from `open` to `close`.

    A deadline cancels `score`; how many run at once is limited by `reward.remote_pool`.
    """

    name: str
    """What requests call it."""
    description: str
    """One line for `GET /v1/verifiers`."""
    Params: type[R]
    """Its parameters; their JSON schema is published."""
    available: bool = True
    lacks_extra: bool = False
    notice: str = ""
    """See Verifier."""

    @property
    def loading(self) -> str:
        """Words for what it loads before it is ready. Empty: nothing, or the load is stuck."""
        return ""

    @property
    def ready(self) -> bool:
        """Whether the service may say that it is ready. Once true, it stays so."""
        return True

    def deadline(self, params: R) -> float | None:
        """Seconds that one item may take from the start of its turn; None: the service that is
        asked has deadlines of its own."""
        return params.timeout

    def check(self, params: R) -> None:
        """Raise ValueError, with a sentence for the caller, if `params` cannot be served here."""

    async def check_reference(self, item: Item, params: R) -> None:
        """See Verifier.check_reference. Raises BadReferenceError."""

    async def output(self, item: Item, params: R) -> str:
        """See Verifier.output."""
        raise NotImplementedError(f"verifier {self.name!r} runs no programs")

    async def open(self) -> None:
        """Called once, before the first `score`."""

    async def close(self) -> None:
        """Called once, when no more `score` will follow."""

    @abstractmethod
    async def score(self, item: Item, params: R) -> Verdict:
        """The verdict on `item`."""


def correct(detail: str = "") -> Verdict:
    """The answer equals the reference: reward 1."""
    return Verdict(ScoreStatus.CORRECT, 1.0, detail)


def failed(status: ScoreStatus, detail: str = "") -> Verdict:
    """The answer earns nothing (`wrong`, `no_answer`, `unparsable`): reward 0."""
    return Verdict(status, 0.0, detail)


def broken(detail: str) -> Verdict:
    """Our side broke: reward null, the trajectory is masked from the loss."""
    return Verdict(ScoreStatus.ERROR, None, detail)


UNJUDGED = "cannot be judged: "
"""Begins the detail of a 0 for an answer on which a built-in verifier raised an exception."""
MAX_DETAIL = 1000
_VERDICTS = msgspec.msgpack.Decoder(Verdict)


def checked(name: str, verdict: Any) -> Verdict:
    """`verdict` of the verifier `name`, if it keeps the contract: own ones are not trusted to."""
    if not isinstance(verdict, Verdict):
        return broken(f"verifier {name!r} returned {type(verdict).__name__}, no Verdict")
    try:
        # As the service will read it.
        read = _VERDICTS.decode(msgspec.msgpack.encode(verdict))
    except (TypeError, ValueError, OverflowError) as error:
        return broken(f"verifier {name!r} returned no valid Verdict: {brief(error)}")
    numbers = [*read.components.values(), *([] if read.reward is None else [read.reward])]
    numbers += [score for _, score in read.parts]
    for number in numbers:
        if not math.isfinite(number):
            return broken(f"verifier {name!r} returned a reward that is not finite")
        if not is_reward(number):
            return broken(
                f"verifier {name!r} returned a reward of {number:g}; training takes {MOST_REWARD:g}"
            )
    if (read.reward is None) != (read.status is ScoreStatus.ERROR):
        return broken(
            f"verifier {name!r} returned status {read.status!s} with reward {read.reward}: null "
            "goes with 'error' alone"
        )
    ends = [0, *(end for end, _ in read.parts)]
    if ends != sorted(ends):
        return broken(f"verifier {name!r} returned parts that do not end one after the other")
    return msgspec.structs.replace(read, detail=read.detail[:MAX_DETAIL])


def shown(value: Any, limit: int = 80) -> str:
    """`value` quoted for a detail: one line, at most `limit` characters of it."""
    # Cut before repr: a completion may hold megabytes.
    text = value if isinstance(value, str) else str(value)
    return repr(text) if len(text) <= limit else repr(text[:limit]) + "…"
