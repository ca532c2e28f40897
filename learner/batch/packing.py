"""Cut a batch into minibatches, and minibatches into micro-batches. Pure, and the same in every
process.

A micro-batch is one row of concatenated sequences, without padding. Its cut must never change the
gradient (see `aggregation`), so it is optimised for time alone.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np


def minibatches(
    positions: Sequence[int], parts: int, seed: int, step: int, number: int
) -> list[list[int]]:
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


def micro_batches_needed(lengths: Sequence[int], budget: int) -> int:
    """Fewest micro-batches of at most `budget` tokens, as `micro_batches` cuts them."""
    return len(_cut(_by_length(lengths), lengths, budget))


def micro_batches(
    lengths: Sequence[int],
    budget: int,
    count: int | None = None,
    costs: Sequence[int] | None = None,
) -> list[list[int]]:
    """Cut the indices of `lengths` into micro-batches of at most `budget` tokens each. A length
    counts the tokens of a sequence, or of several sequences that share a prefix.

    Sequences of similar length go together: mixed lengths cost padding or extra kernel calls. A
    sequence longer than `budget` gets its own micro-batch.

    With `count`, return exactly that many lists. They are as even in `costs` (default: tokens) as
    the order allows. If there are fewer sequences, the last lists are empty. Ranks must run the
    same number of backward passes, or their all-reduces deadlock.

    Raises ValueError if `count` is too small for the budget.
    """
    order = _by_length(lengths)
    needed = len(_cut(order, lengths, budget))
    if count is None:
        count = needed
    if count < needed:
        raise ValueError(
            f"{sum(lengths)} tokens need {needed} micro-batches of {budget}, not {count}"
        )
    if not order:
        return [[] for _ in range(count)]
    costs = lengths if costs is None else costs
    # The smallest cost limit that still fits into `count` cuts makes them even.
    low, high = max(max(costs), -(-sum(costs) // count)), sum(costs)
    while low < high:
        middle = (low + high) // 2
        if len(_cut(order, lengths, budget, costs, middle)) <= count:
            high = middle
        else:
            low = middle + 1
    cuts = _cut(order, lengths, budget, costs, low)
    return cuts + [[] for _ in range(count - len(cuts))]


def _by_length(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))


def _cut(
    order: Sequence[int],
    lengths: Sequence[int],
    budget: int,
    costs: Sequence[int] | None = None,
    max_cost: int = 0,
) -> list[list[int]]:
    """Cut greedily, in order: at most `budget` tokens a micro-batch and, with `costs`, at most
    `max_cost`."""
    cuts: list[list[int]] = []
    tokens = cost = 0
    for index in order:
        tokens += lengths[index]
        cost += costs[index] if costs else 0
        if not cuts or tokens > budget or cost > max_cost:
            cuts.append([])
            tokens, cost = lengths[index], costs[index] if costs else 0
        cuts[-1].append(index)
    return cuts
