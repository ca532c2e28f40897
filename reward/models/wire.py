"""The messages between the service and a reward model's process, in frames of msgpack."""

from typing import Any

import msgspec

Message = dict[str, Any]
"""A chat message: `role`, `content`."""


class ModelOptions(msgspec.Struct, frozen=True):
    """How to load a model, and how large its batches are."""

    path: str
    """A folder in Hugging Face layout, or a hub name."""
    device: str = "auto"
    """`auto` is the first GPU, or the CPU without a GPU."""
    gpu: str = ""
    """The only GPU that the process sees, by number or UUID. Empty: the GPUs that the service sees.
    """
    dtype: str = "auto"
    """`auto`: bfloat16 on a GPU, float32 on the CPU."""
    max_tokens: int = 4096
    """The longest conversation, in tokens. A longer one loses its beginning."""
    batch_tokens: int | None = None
    """Tokens of one forward pass, padding included. None: a default for the device."""
    trust_remote_code: bool = False
    """Run Python files that come with the model."""


class Loaded(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """From the model: it is ready, and its scores have this number of labels."""

    labels: int


class Failed(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """From the model: loading failed."""

    problem: str


class Question(msgspec.Struct, array_like=True, frozen=True):
    """To the model: a conversation that ends with the answer to score."""

    ticket: int
    messages: list[Message]


class Scored(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """From the model: raw scores, one a label, or the reason why there are no scores."""

    ticket: int
    scores: list[float]
    truncated: bool = False
    problem: str = ""


Reply = Loaded | Failed | Scored
