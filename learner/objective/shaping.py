"""Shape a verifier's reward into the score that advantages use. Pure.

A missing reward (its verifier broke) must stay missing.
"""

import torch

from services.contracts.config.objective.shaping import Shaping


def shaped_rewards(
    config: Shaping,
    rewards: torch.Tensor,
    ended: torch.Tensor,
    lengths: torch.Tensor,
    max_tokens: int,
) -> torch.Tensor:
    """Scores [n] from `rewards` [n]. NaN marks a missing reward and stays NaN.

    `ended` [n] bool: the completion has its end of sequence; `lengths` [n]: its tokens, at most
    `max_tokens`. A replaced score is not clipped. The overlong penalty is added last.

    Sources: replaced scores as in torchtune's PPO, zero without end as in AReaL, overlong penalty
    of DAPO (Yu et al. 2025).
    """
    score = (rewards - config.bias) * config.scale
    if config.max_reward_clip is not None:
        score = score.clamp(-config.max_reward_clip, config.max_reward_clip)
    if config.reward_penalty is not None:
        score = score.masked_fill(_penalised(config, ended, lengths), config.reward_penalty)
    if config.mask_no_eos_with_zero:
        score = score.masked_fill(~ended, 0.0)
    if config.overlong_buffer:
        over = lengths - (max_tokens - config.overlong_buffer)
        score = score - over.clamp(min=0) / config.overlong_buffer * config.overlong_factor
    return score.masked_fill(rewards.isnan(), torch.nan)


def replaced(config: Shaping, ended: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """[n] bool: samples whose score no longer depends on the reward. See `shaped_rewards` for the
    arguments."""
    penalised = _penalised(config, ended, lengths)
    return penalised | ~ended if config.mask_no_eos_with_zero else penalised


def _penalised(config: Shaping, ended: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    bad = lengths < config.min_response_length
    return bad | ~ended if config.penalise_no_eos else bad
