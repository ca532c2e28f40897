"""What rank 0 tells the other ranks between steps. Types and their bytes, nothing else."""

from typing import Literal

import msgspec


class Order(msgspec.Struct, frozen=True):
    """Train a batch, or end.

    `finish`: every step is trained. `cancel`: the user asked to end the run. `yield`: this
    process was asked to end, the run goes on later.
    """

    kind: Literal["train", "finish", "cancel", "yield"]
    step: int = 0
    """The batch's number, from 1; it is trained at version `step − 1`."""
    minibatches: list[list[list[int]]] = []
    """Positions of draws, by minibatch and rank."""


class Plan(msgspec.Struct, frozen=True):
    """Groups of one batch: stream entries, draws and sizes, in order."""

    entries: list[str]
    draws: list[str]
    bytes: list[int]


def encode(order: Order) -> bytes:
    """The order as bytes."""
    return msgspec.msgpack.encode(order)


def decode(message: bytes) -> Order:
    """The inverse of `encode`."""
    return msgspec.msgpack.decode(message, type=Order)
