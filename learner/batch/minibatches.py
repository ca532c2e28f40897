"""Cut a batch into minibatches for each pass. Pure, and the same in every process."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np


def cut(positions: Sequence[int], parts: int, seed: int, step: int, number: int) -> list[list[int]]:
    """Cut the groups of tasks at `positions` into `parts` minibatches for pass `number` (from 0)
    over the batch of `step`.

    Each pass has its own seeded order: torchtune and AReaL also shuffle a batch before every pass.
    A single minibatch keeps the order of `positions`.
    """
    if parts == 1:
        return [list(positions)]
    # PCG64 by name: numpy promises its stream, not that of default_rng.
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, step, number])))
    order = generator.permutation(np.sort(np.asarray(positions, dtype=np.int64))).tolist()
    bounds = [len(order) * i // parts for i in range(parts + 1)]
    return [order[a:b] for a, b in pairwise(bounds)]
