"""Memory of one vLLM server, per GPU."""

from dataclasses import dataclass

from services.estimate.shape import ModelShape

GRAPHS = 2 << 30
"""CUDA's own, graphs, and what a pass over prompts takes."""
LOGITS = 8
"""Bytes per sequence and token of the vocabulary: logits in float32, and their softmax."""


@dataclass(frozen=True)
class Server:
    """One server."""

    gpus: int
    """That share it."""
    budget: int
    """Bytes of each that it may take."""
    sequences: int
    """Generated at once, at most."""
    longest: int
    """Tokens of the longest sequence that it has to serve."""
    half: bool
    quantised: bool = False
    """Whether blocks have 8 bits a weight, and only the embedding and the output head more."""


def weights(shape: ModelShape, server: Server) -> int:
    """Bytes on each GPU."""
    number, outside = (2 if server.half else 4), shape.embedding + shape.head
    every = shape.parameters * number
    if server.quantised:
        every = (shape.parameters - outside) + outside * number
    return -(-every // server.gpus)


def overhead(shape: ModelShape, server: Server) -> int:
    """Bytes besides weights and cache."""
    return GRAPHS + server.sequences * shape.vocabulary * LOGITS // server.gpus


def token_bytes(shape: ModelShape, server: Server) -> int:
    """Keys and values of one token on each GPU, which divide the heads."""
    number = 2 if server.half else 4
    return -(-2 * number * shape.layers * shape.key_value // server.gpus)


def cache(shape: ModelShape, server: Server) -> int:
    """Bytes left for keys and values; below 0 where not even the weights fit."""
    return server.budget - weights(shape, server) - overhead(shape, server)
