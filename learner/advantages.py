"""How much better each sample was than the others of its prompt.

Pure functions of one group's rewards. Must never let a trajectory without a reward (its
verifier broke) touch another one's advantage.
"""

import torch

from services.contracts.config.algorithm import Advantage, GroupMean, GroupZScore, LeaveOneOut

EPSILON = 1e-6


def group_advantages(config: Advantage, rewards: torch.Tensor) -> torch.Tensor:
    """Advantages [n] of one group's `rewards` [n]; NaN marks a reward that does not exist.

    Samples without a reward get 0 and leave the statistics; so does a group of one, which has
    nothing to compare with. The standard deviation is the unbiased one.

    Sources: GRPO (Shao et al. 2024), Dr. GRPO (Liu et al. 2025), RLOO (Ahmadian et al. 2024).
    """
    known = ~rewards.isnan()
    count = int(known.sum())
    advantages = torch.zeros_like(rewards)
    if count < 2:
        return advantages
    r = rewards[known]
    match config:
        case GroupMean():
            a = r - r.mean()
        case GroupZScore():
            a = (r - r.mean()) / (r.std() + EPSILON)
        case LeaveOneOut():
            a = r - (r.sum() - r) / (count - 1)
    # A constant group has nothing to teach; rounding in the mean must not be scaled up by 1/ε.
    advantages[known] = torch.where((r == r[0]).all(), torch.zeros_like(a), a)
    return advantages


def shaped_rewards(rewards: torch.Tensor, max_clip: float | None) -> torch.Tensor:
    """Rewards clipped to ±`max_clip` (None: as they are). NaN stays NaN."""
    return rewards if max_clip is None else rewards.clamp(-max_clip, max_clip)
