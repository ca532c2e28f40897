"""How much of vLLM held-out rows get beside training, and how much training keeps. Pure."""

import math


def evaluation_rows(most: int, training: int, share: float | None, samples: int) -> int:
    """Rows of so many samples for evaluation to have in vLLM: its `share` (None: all) of the `most`
    completions there, or what `training` leaves of them."""
    return _rows_beside(most, training, 1.0 if share is None else share, samples)


def training_groups(most: int, evaluation: int, share: float | None, samples: int) -> int:
    """Groups of so many samples for training to have there: what `evaluation`, whose `share` it is,
    leaves, or what is not its share."""
    return _rows_beside(most, evaluation, 1 - (share or 0.0), samples)


def _rows_beside(most: int, used: int, share: float, samples: int) -> int:
    return max(1, math.floor(max(share * most, most - used) / samples))
