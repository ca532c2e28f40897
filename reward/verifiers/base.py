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
    """One completion to score: all that a verifier sees, in the form that is sent to a worker."""

    verifier: str
    prompt: str | list[Message]
    completion: str
    answer: Any
    params: dict[str, Any]
    columns: dict[str, Any] = {}
    """The other columns of the dataset row."""
    prefill: str = ""
    """The beginning of the answer that the prompt already has, such as `<think>`."""
    truncated: bool = False
    """Whether the completion was cut off. Then its last words are not its answer."""

    @property
    def after_thoughts(self) -> str:
        """Return the completion after its thoughts. Return an empty string if the last thought has
        no end: thoughts are not the answer."""
        return answer_of(self.completion, self.prefill) or ""


class ItemWork(StrEnum):
    """The work on an item."""

    SCORE = "score"
    REFERENCE = "reference"
    """Check the reference alone."""
    RUN = "run"
    """Run the completion as a program; the verdict's detail is what it prints. Only `code` can."""


class Verdict(msgspec.Struct, array_like=True, frozen=True):
    """A verifier's result for one item. Only an `error` has no `reward`."""

    status: ScoreStatus
    reward: float | None
    detail: str = ""
    components: dict[str, float] = {}
    parts: list[tuple[int, float]] = []
    """Scores of parts of the completion, for dense rewards, in order: pairs of a part's end, in
    characters, and its score."""


class BadReferenceError(ValueError):
    """The dataset's reference answer cannot be used. The message gives the reason and the value."""


class ItemParams(BaseModel):
    """The parameters of an item. Unknown parameters are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    timeout: float


class VerifierParams(ItemParams):
    """The parameters of every `Verifier`. A verifier's own parameters derive from this class."""

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
    """The parameters of every `RemoteVerifier`. A verifier's own parameters derive from this
    class."""

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
    """Scores one kind of answer. Instances hold no state between items except caches."""

    name: ClassVar[str]
    """The name in requests."""
    description: ClassVar[str]
    """One line for `GET /v1/verifiers`."""
    Params: type[P]
    """The class of its parameters. Their JSON schema is published."""
    reference: ClassVar[str] = ""
    """The parameter that replaces the answer when it is set. A submission checks it with
    `check_reference`, on an item without an answer."""
    slow: ClassVar[bool] = False
    """Whether an item usually takes longer than a fifth of a second. The pool then keeps its items
    off the workers for quick items."""
    available: bool = True
    """Whether items can be scored on this machine; see `probe`."""
    lacks_extra: bool = False
    """Whether the only reason for being unavailable is an optional package that is not installed.
    The service still counts as healthy."""
    notice: str = ""
    """A note for the operator about this machine, or the reason why the verifier cannot be used."""

    def deadline(self, params: P) -> float:
        """Return how many seconds one item may take until its process is killed. A verifier that
        keeps to `timeout` itself, without the waits for a CPU, has a longer deadline."""
        return params.timeout

    def probe(self) -> None:
        """Find out whether the verifier works on this machine, and set `available` and `notice`.
        The service calls this in its own process before it listens."""

    def warm(self) -> None:
        """Import and build everything for scoring, once, before worker processes are forked."""

    def check_reference(self, item: Item, params: P) -> str | None:
        """Raise BadReferenceError unless `item.answer` (or `item.columns`) can serve as a
        reference. Return a remark if the reference may still be from the wrong column; a submission
        quotes it if more than half of the rows get one.

        The check does not look at the prompt and the completion. The default accepts any reference.
        An upload and a submission run the check on all rows, so it should take less than a
        millisecond. After an item has failed to finish twice, a fresh worker runs the check alone.
        If the check hangs too, the reference or `params` are to blame.
        """
        return None

    def output(self, item: Item, params: P) -> str:
        """Return what the program in `item.completion` prints, and how it failed if it did."""
        raise NotImplementedError(f"verifier {self.name!r} runs no programs")

    @abstractmethod
    def score(self, item: Item, params: P) -> Verdict:
        """Return the verdict on `item`. Raises BadReferenceError for an unusable reference."""


class RemoteVerifier(ABC, Generic[R]):
    """Has completions scored by another service. It lives in the service's event loop, from `open`
    to `close`.

    A deadline cancels `score`. `reward.remote_pool` limits how many run at once.
    """

    name: str
    """The name in requests."""
    description: str
    """One line for `GET /v1/verifiers`."""
    Params: type[R]
    """The class of its parameters. Their JSON schema is published."""
    available: bool = True
    lacks_extra: bool = False
    notice: str = ""
    """A note for the operator, as `Verifier.notice`."""

    @property
    def loading(self) -> str:
        """Describe what the verifier still loads. Return an empty string if nothing is loading, or
        if the load is stuck."""
        return ""

    @property
    def ready(self) -> bool:
        """Tell whether the verifier can be asked. Once true, it stays true."""
        return True

    def deadline(self, params: R) -> float | None:
        """Return how many seconds one item may take once its turn has begun. Return None if the
        other service has deadlines of its own."""
        return params.timeout

    def check(self, params: R) -> None:
        """Raise ValueError, with a sentence for the caller, if this service cannot serve
        `params`."""

    async def check_reference(self, item: Item, params: R) -> None:
        """Raise BadReferenceError for an unusable reference, as `Verifier.check_reference`."""

    async def output(self, item: Item, params: R) -> str:
        raise NotImplementedError(f"verifier {self.name!r} runs no programs")

    async def open(self) -> None:
        """Called once, before the first `score`."""

    async def close(self) -> None:
        """Called once, when no more `score` will follow."""

    @abstractmethod
    async def score(self, item: Item, params: R) -> Verdict:
        """Return the verdict on `item`."""


def correct(detail: str = "") -> Verdict:
    """Return the verdict for an answer that equals the reference: reward 1."""
    return Verdict(ScoreStatus.CORRECT, 1.0, detail)


def failed(status: ScoreStatus, detail: str = "") -> Verdict:
    """Return the verdict for an answer that earns nothing (`wrong`, `no_answer`, `unparsable`):
    reward 0."""
    return Verdict(status, 0.0, detail)


def broken(detail: str) -> Verdict:
    """Return the verdict for a failure of ours: reward null. The loss masks the trajectory."""
    return Verdict(ScoreStatus.ERROR, None, detail)


UNJUDGED = "cannot be judged: "
"""The beginning of the detail of a 0 for an answer on which a built-in verifier raised an
exception."""
MAX_DETAIL = 1000
_VERDICTS = msgspec.msgpack.Decoder(Verdict)


def checked(name: str, verdict: Any) -> Verdict:
    """Return `verdict` of the verifier `name` if it keeps the contract. Own verifiers may break
    it."""
    if not isinstance(verdict, Verdict):
        return broken(f"verifier {name!r} returned {type(verdict).__name__}, no Verdict")
    try:
        # Read the verdict as the service will read it.
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
    """Quote `value` for a detail: one line, at most `limit` characters."""
    # Cut before repr: a completion may hold megabytes.
    text = value if isinstance(value, str) else str(value)
    return repr(text) if len(text) <= limit else repr(text[:limit]) + "…"
