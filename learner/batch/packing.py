"""Pack sequences into micro-batches.

Pure arithmetic over lengths, without tokens and without padding: a micro-batch is one row of
concatenated sequences. The cut must never change the gradient (see `aggregation`), so this module
optimises for time alone.
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
