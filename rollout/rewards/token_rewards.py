"""Dense rewards: assigns the rewards of an answer's parts to its tokens. Pure.

A verifier sees text, and its parts end at characters. The token that completes a part gets the
part's reward. Text is never tokenized again.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from services.contracts.config.rewards import RewardComponent
from services.contracts.scores import ScoreResult

Decode = Callable[[Sequence[int]], str]
"""From tokens to the text that verifiers see."""
LONGEST_CHARACTER = 16
"""Tokens. Longer runs of tokens without a whole character are meaningless bytes or special
tokens."""
Part = tuple[int, float]
"""The end of a part, in characters of the text, and its reward."""


def earned(rewards: Mapping[str, RewardComponent], known: Mapping[str, ScoreResult]) -> list[Part]:
    """Return the rewards of one answer's parts, over all dense components, after clips and weights.
    Both mappings are by name."""
    rewards_of_parts: list[Part] = []
    for name, reward in rewards.items():
        if reward.dense is None or name not in known:
            continue
        baseline = 0.0
        for part in known[name].parts:
            score = reward.clipped(part.score)
            # A score before the first character is the baseline of the others.
            if part.end > 0:
                rewards_of_parts.append((part.end, reward.weight * (score - baseline)))
            if reward.dense == "cumulative":
                baseline = score
    return rewards_of_parts


def token_rewards(
    parts: Sequence[Part], token_ids: Sequence[int], decode: Decode
) -> npt.NDArray[np.float32]:
    """Return [tokens] the reward of each token, from the `parts` of their text."""
    rewards = np.zeros(len(token_ids), dtype=np.float32)
    if parts and len(token_ids):
        ends = text_ends(token_ids, decode)
        for end, reward in parts:
            rewards[min(bisect_left(ends, end), len(ends) - 1)] += reward
    return rewards


def text_ends(token_ids: Sequence[int], decode: Decode) -> list[int]:
    """Return [tokens] the number of characters of the text up to and including each token.

    A token's text depends on the token before it (blanks, bytes of one character), and never on
    tokens before the last whole character. So only the tokens since then, at most
    LONGEST_CHARACTER, are decoded with it. The time stays linear even if a policy repeats half a
    character without end.
    """
    ends: list[int] = []
    total = start = whole = 0
    for i in range(len(token_ids)):
        start_text, text = decode(token_ids[start:whole]), decode(token_ids[start : i + 1])
        grown = max(0, len(text) - len(start_text))
        # These bytes do not make a character yet.
        open_ = not grown or text.endswith("\N{REPLACEMENT CHARACTER}")
        if not open_ or i + 1 - whole == LONGEST_CHARACTER:
            total += grown
            start, whole = whole, i + 1
        ends.append(total)
    return ends
