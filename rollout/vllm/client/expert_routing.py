"""Expert routing as vLLM records it: for each token of a trajectory, prompt included, the experts
to which each layer's router sent it. Pure.

The last sampled token has not been through the layers, so its routing is missing. If a trajectory
takes several requests, a token's routing comes from the first request: the next token was sampled
under it.
"""

import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from numpy.lib.format import read_array_header_1_0, read_magic

from services.contracts.experts import expert_count

HEADER_BYTES = 4096
"""Upper limit for the header of a .npy file of a plain array."""

Experts = npt.NDArray[np.unsignedinteger]
"""[tokens, layers, experts per token]."""


class MissingRouting(ValueError):
    """A completion lacks the routing that the run replays."""


def decoded(content: memoryview) -> Experts:
    """Decode the routing in vLLM's answer, a .npy file, without a copy. Raises ValueError for any
    other content."""
    file = io.BytesIO(content[:HEADER_BYTES])
    try:
        if (version := read_magic(file)) != (1, 0):
            raise ValueError(f"version {version}")
        shape, in_columns, dtype = read_array_header_1_0(file)
        flat = np.frombuffer(content[file.tell() :], dtype)
        experts = flat.reshape(shape, order="F" if in_columns else "C")
    except ValueError as error:
        raise ValueError(f"not a .npy file: {error}") from error
    if experts.ndim != 3 or experts.dtype.kind not in "iu":
        raise ValueError(
            f"{experts.dtype} {list(experts.shape)} in place of integers "
            "[tokens, layers, experts per token]"
        )
    return experts


def extended(known: Experts | None, more: Experts | None) -> Experts | None:
    """Return `known`, extended by `more` of a later request for the same trajectory."""
    if known is None or more is None:
        return more if known is None else known
    return np.concatenate([known, more[len(known) :]])


def gathered(
    prompt: int, lengths: Sequence[int], routings: Sequence[Experts | None]
) -> tuple[Experts, npt.NDArray[np.int64]]:
    """Return a group's routing as on the wire (`TrajectoryGroup`). Completions have `lengths`
    tokens; `routings` are theirs from the prompt's first token on.

    The prompt's routing is taken from the first completion, since all share its keys and values.
    Raises MissingRouting.
    """
    whole = [each for each in routings if each is not None and len(each) >= prompt]
    if len(whole) < len(routings):
        raise MissingRouting(
            "a completion comes without expert routing, or with less than its prompt's, which "
            "algorithm.router.replay needs: does the episode type hand on Sample.experts?"
        )
    completions = [each[prompt : prompt + n] for each, n in zip(whole, lengths, strict=True)]
    return np.concatenate([whole[0][:prompt], *completions]), np.array(
        [len(each) for each in completions]
    )


def bytes_per_token(model: Path) -> int:
    """Return the most bytes of one token's routing, by the config in the folder `model`."""
    config = json.loads((model / "config.json").read_text())
    config = config.get("text_config") or config
    size = 1 if expert_count(config) <= 256 else 2
    return int(size * config["num_hidden_layers"] * config.get("num_experts_per_tok", 0))
