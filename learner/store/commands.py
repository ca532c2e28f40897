"""Rank 0's commands to the other ranks between batches."""

from typing import Literal

import msgspec


class GroupShare(msgspec.Struct, frozen=True, array_like=True):
    """The samples of one group that one rank trains."""

    position: int
    """Position of the group's task."""
    samples: list[int]
    """Numbers of the samples within the group."""
    of: int
    """Number of samples in the group."""
    counts: bool
    """Whether this rank counts the group in the batch's metrics. Exactly one rank does."""


class Command(msgspec.Struct, frozen=True):
    """Train a batch, or end.

    `finish`: every step is trained. `cancel`: the user cancelled the run. `yield`: this process was
    asked to end, and the run resumes later.
    """

    kind: Literal["train", "finish", "cancel", "yield"]
    step: int = 0
    """The batch's number, from 1. It is trained at version `step − 1`."""
    minibatches: list[list[list[GroupShare]]] = []
    """Shares by minibatch and rank."""
    max_steps: int = 0
    """The end of the learning rate's schedule."""
    lr: float | None = None
    """The peak of the learning rate, if it was edited."""
    validate_every: int = 0
    """Steps between validations of a supervised run."""
