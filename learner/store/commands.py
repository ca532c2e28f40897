"""What rank 0 tells the other ranks between batches, and the plan of a batch. Types and bytes."""

from typing import Literal

import msgspec

from services.contracts.groups.group_lengths import GroupLengths


class Share(msgspec.Struct, frozen=True, array_like=True):
    """What one rank trains of one group."""

    position: int
    """Of the group's task."""
    samples: list[int]
    """Their numbers within the group."""
    of: int
    """How many samples the group has."""
    counts: bool
    """Whether this rank counts the group in the batch's metrics, as one does."""


class Command(msgspec.Struct, frozen=True):
    """Train a batch, or end.

    `finish`: every step is trained. `cancel`: the user cancelled the run. `yield`: this process
    was told to end, the run goes on later.
    """

    kind: Literal["train", "finish", "cancel", "yield"]
    step: int = 0
    """The batch's number, from 1; it is trained at version `step − 1`."""
    minibatches: list[list[list[Share]]] = []
    """By minibatch and rank."""


class Plan(msgspec.Struct, frozen=True):
    """Groups of one batch: stream entries, tasks, sizes and lengths, in order."""

    entries: list[str]
    tasks: list[str]
    bytes: list[int]
    lengths: list[GroupLengths]


def encode(command: Command) -> bytes:
    """The command as bytes."""
    return msgspec.msgpack.encode(command)


def decode(message: bytes) -> Command:
    """The inverse of `encode`."""
    return msgspec.msgpack.decode(message, type=Command)
