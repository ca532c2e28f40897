"""Which sequences share a micro-batch.

Pure arithmetic over lengths. Never looks at tokens, never pads: a micro-batch is one row of
concatenated sequences. The cut must never change the gradient (see `aggregation`), so everything
here is free to optimise for time alone.
"""

from collections.abc import Sequence


def micro_batches_needed(lengths: Sequence[int], budget: int) -> int:
    """Fewest micro-batches of at most `budget` tokens, as `micro_batches` cuts them."""
    return len(_cut(_by_length(lengths), lengths, budget))


def micro_batches(
    lengths: Sequence[int],
    budget: int,
    count: int | None = None,
    costs: Sequence[int] | None = None,
) -> list[list[int]]:
    """Indices of `lengths`, cut into micro-batches of at most `budget` tokens each. A length is
    that of a sequence, or what several compute that share a prefix.

    Those of similar length go together, because short sequences beside long ones are padded, or
    take further calls of kernels. What is longer than `budget` gets a micro-batch of its own.

    With `count`, exactly that many lists come back, as even in `costs` (default: tokens) as the
    order allows and empty ones at the end if there are fewer sequences: ranks must take the same
    number of backward passes, or their all-reduces would wait for each other for ever.

    Raises ValueError where `count` is too small for the budget.
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
    # The smallest limit of cost that still fits into `count` cuts makes them even.
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
    most: int = 0,
) -> list[list[int]]:
    """Behind each other, at most `budget` tokens each, and with `costs` at most `most` of these."""
    cuts: list[list[int]] = []
    tokens = cost = 0
    for index in order:
        tokens += lengths[index]
        cost += costs[index] if costs else 0
        if not cuts or tokens > budget or cost > most:
            cuts.append([])
            tokens, cost = lengths[index], costs[index] if costs else 0
        cuts[-1].append(index)
    return cuts
