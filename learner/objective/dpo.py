"""Direct preference optimisation (Rafailov et al. 2023, arXiv:2305.18290)."""

from typing import NamedTuple

import torch
from torch.nn.functional import logsigmoid


class Compared(NamedTuple):
    loss: torch.Tensor
    """[n], with gradient."""
    rewards: torch.Tensor
    """[2, n] β · (log π − log π_ref) of the chosen and of the rejected answers."""


def compare(
    policy: torch.Tensor, reference: torch.Tensor, beta: float, label_smoothing: float = 0.0
) -> Compared:
    """The loss −(1 − ε)·log σ(Δ) − ε·log σ(−Δ) of pairs, with Δ the chosen reward minus the
    rejected one and ε the `label_smoothing` (conservative DPO, Mitchell 2023).

    `policy`, `reference`: [2, n] log-probabilities of the chosen and the rejected answers, each
    summed over the tokens of the answer.
    """
    rewards = beta * (policy - reference)
    margin = rewards[0] - rewards[1]
    loss = -(1 - label_smoothing) * logsigmoid(margin) - label_smoothing * logsigmoid(-margin)
    return Compared(loss, rewards)
