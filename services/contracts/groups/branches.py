"""Branches of a completion: turns of an agent's session that do not continue the turn before them.
Pure.

A completion has each token once, turn after turn. If a turn continues from another place than the
end of the tokens before it, a `Branch` names that place. From these, `conversations` makes the
sequences that the policy has seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Branch(NamedTuple):
    """A place in a completion whose tokens do not continue the tokens before them."""

    start: int
    """The branch's first token, counted in the completion."""
    after: int
    """How many tokens of prompt and completion lie up to the place that they continue: with at most
    the prompt's, they continue a beginning of the prompt, else the token before that place."""


@dataclass(frozen=True)
class Conversation:
    """A sequence that the policy has seen, from the prompt to the end of a branch."""

    prompt: int
    """How many of the prompt's tokens it begins with."""
    places: npt.NDArray[np.int64]
    """The completion's tokens that it goes on with, by their places in the completion."""
    new: npt.NDArray[np.bool_]
    """Whether each token is absent from all earlier conversations: a token is trained in one
    conversation only."""


def conversations(prompt: int, length: int, branches: Sequence[Branch]) -> list[Conversation]:
    """Split a completion into the conversations that the policy has seen. `prompt` and `length`
    count the tokens of the prompt and of the completion. Each token of the completion is `new` in
    exactly one conversation. Raises ValueError if `branches` do not fit."""
    starts = [0, *(branch.start for branch in branches)]
    ends = [*starts[1:], length]
    for previous, branch in zip(starts, branches, strict=False):
        if not (previous < branch.start < length and 0 <= branch.after <= prompt + branch.start):
            raise ValueError(f"{branch} does not fit a prompt of {prompt} and {length} tokens")
    afters = [prompt, *(branch.after for branch in branches)]
    paths: list[tuple[int, npt.NDArray[np.int64]]] = []
    for start, end, after in zip(starts, ends, afters, strict=True):
        begins, before = min(after, prompt), np.empty(0, np.int64)
        if after > prompt:
            of = int(np.searchsorted(starts, after - prompt - 1, side="right")) - 1
            begins, whole = paths[of]
            before = whole[: len(whole) - (ends[of] - (after - prompt))]
        paths.append((begins, np.concatenate([before, np.arange(start, end)])))
    # A branch that another branch continues from its end is part of that branch's conversation.
    continued = {after - prompt for after in afters[1:] if after > prompt}
    seen = np.zeros(length, np.bool_)
    whole_conversations = []
    for (begins, places), end in zip(paths, ends, strict=True):
        if end not in continued:
            whole_conversations.append(Conversation(begins, places, ~seen[places]))
            seen[places] = True
    return whole_conversations
