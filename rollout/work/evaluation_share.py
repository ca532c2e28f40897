"""Divides vLLM between held-out rows and training. Pure."""

import math


def evaluation_rows(completions: int, training: int, share: float | None, samples: int) -> int:
    """Return how many rows of `samples` completions evaluation may have in vLLM: its `share` (None:
    all) of `most` completions, or what `training` leaves free if that is more."""
    return _rows_beside(completions, training, 1.0 if share is None else share, samples)


def training_groups(completions: int, evaluation: int, share: float | None, samples: int) -> int:
    """Return how many groups of `samples` completions training may have in vLLM: the share that is
    not the evaluation's, or what `evaluation` leaves free if that is more."""
    return _rows_beside(completions, evaluation, 1 - (share or 0.0), samples)


def _rows_beside(completions: int, used: int, share: float, samples: int) -> int:
    return max(1, math.floor(max(share * completions, completions - used) / samples))
