"""The tasks that a curriculum samples: a function of the row's pass rate, the seed and the task."""

import numpy as np

from services.contracts.config.data import Curriculum

CURRICULUM = 3
"""The number of the curriculum's random stream of a seed."""


def probability(config: Curriculum, rate: float | None) -> float:
    """Return the probability that a prompt with the running pass rate `rate` (None: unknown yet) is
    sampled.

    4·p·(1 − p) is the variance of success as a share of the largest variance. It measures how much
    a prompt can teach (Foster et al. 2025, arXiv:2502.12272).
    """
    return 1.0 if rate is None else max(config.least, 4 * rate * (1 - rate))


def sampled(config: Curriculum, rate: float | None, seed: int, task: int) -> bool:
    """Whether the task at this position is sampled, in a run with this `training.seed`."""
    # PCG64 by name: numpy promises its stream, not that of default_rng.
    entropy = np.random.SeedSequence([seed, CURRICULUM, task])
    return bool(np.random.Generator(np.random.PCG64(entropy)).random() < probability(config, rate))
