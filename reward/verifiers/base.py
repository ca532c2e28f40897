"""What a verifier is: the protocol that built-in and own verifiers implement.

A verifier runs inside a worker process that may be killed at any moment, so it needs no timeout
of its own, may block, may burn memory, and must leave nothing outside its process. It says what
the *answer* deserves; what it raises counts as its own breakdown, and gets no reward at all.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from services.contracts.scores import ScoreStatus

Message = dict[str, Any]


class Item(msgspec.Struct, array_like=True, frozen=True):
    """One completion to score, as it travels to a worker: what a verifier may see of it."""

    verifier: str
    prompt: str | list[Message]
    completion: str
    answer: Any
    params: dict[str, Any]


class Verdict(msgspec.Struct, array_like=True, frozen=True):
    """What a verifier says of one item. `reward` is None for `error` alone."""

    status: ScoreStatus
    reward: float | None
    detail: str = ""
    components: dict[str, float] = {}


class BadReferenceError(ValueError):
    """The dataset's reference answer cannot be used. The message says why, and names its value."""


class VerifierParams(BaseModel):
    """What every verifier takes. A verifier's own parameters derive from this."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    timeout: float = Field(
        5.0,
        gt=0,
        le=600,
        description="Seconds (wall clock) that one item may take. Then its process is killed, and "
        "the item tried once more on a fresh one.",
    )
    on_timeout: float = Field(
        0.0,
        allow_inf_nan=False,
        description="The reward of an answer that could not be compared in time, twice.",
    )


P = TypeVar("P", bound=VerifierParams)


class Verifier(ABC, Generic[P]):
    """Scores one kind of answer. Instances hold no state between items but caches."""

    name: ClassVar[str]
    """What requests call it."""
    description: ClassVar[str]
    """One line for `GET /v1/verifiers`."""
    Params: type[P]
    """Its parameters; their JSON schema is published."""

    def warm(self) -> None:
        """Import and build what scoring needs, once, before worker processes are forked."""

    @abstractmethod
    def check_reference(self, answer: Any, params: P) -> None:
        """Raise BadReferenceError unless `answer` can serve as a reference.

        Also run by itself, on a fresh worker, when an item did not finish twice: if this does
        not finish either, the reference is to blame and not the completion.
        """

    @abstractmethod
    def score(self, item: Item, params: P) -> Verdict:
        """The verdict on `item`. Raises BadReferenceError for a reference that cannot be used."""


def correct(detail: str = "") -> Verdict:
    """The answer equals the reference: reward 1."""
    return Verdict(ScoreStatus.CORRECT, 1.0, detail)


def failed(status: ScoreStatus, detail: str = "") -> Verdict:
    """The answer earns nothing (`wrong`, `no_answer`, `unparsable`): reward 0."""
    return Verdict(status, 0.0, detail)


def broken(detail: str) -> Verdict:
    """Our side broke: reward null, the trajectory is masked from the loss."""
    return Verdict(ScoreStatus.ERROR, None, detail)


def shown(value: Any, limit: int = 80) -> str:
    """`value` quoted for a detail: one line, at most `limit` characters of it."""
    # Cut before repr: a completion may hold megabytes.
    text = value if isinstance(value, str) else str(value)
    return repr(text) if len(text) <= limit else repr(text[:limit]) + "…"
