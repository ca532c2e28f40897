"""Which sequences share a micro-batch.

Pure arithmetic over lengths. Never looks at tokens, never pads: a micro-batch is one row of
concatenated sequences. The cut must never change the gradient (see `aggregation`), so everything
here is free to optimise for time alone.
"""

from collections.abc import Sequence


def micro_batches_needed(lengths: Sequence[int], budget: int) -> int:
    """Fewest micro-batches of at most `budget` tokens, as `micro_batches` cuts them."""
    return len(_cut(_by_length(lengths), lengths, budget))


def micro_batches(lengths: Sequence[int], budget: int, count: int | None = None) -> list[list[int]]:
    """Indices of `lengths`, cut into micro-batches of at most `budget` tokens each.

    Sequences of similar length go together, because attention over a micro-batch costs
    (sequences × longest²). A sequence longer than `budget` gets a micro-batch of its own.

    With `count`, exactly that many lists come back, as even in tokens as the order allows and
    empty ones at the end if there are fewer sequences: ranks must take the same number of
    backward passes, or their all-reduces would wait for each other for ever.

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
    # The smallest limit that still fits into `count` cuts makes them even.
    low, high = max(max(lengths), -(-sum(lengths) // count)), max(budget, max(lengths))
    while low < high:
        middle = (low + high) // 2
        if len(_cut(order, lengths, middle)) <= count:
            high = middle
        else:
            low = middle + 1
    cuts = _cut(order, lengths, low)
    return cuts + [[] for _ in range(count - len(cuts))]


def _by_length(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))


def _cut(order: Sequence[int], lengths: Sequence[int], limit: int) -> list[list[int]]:
    cuts: list[list[int]] = []
    room = -1
    for index in order:
        if lengths[index] > room:
            cuts.append([])
            room = limit
        cuts[-1].append(index)
        room -= lengths[index]
    return cuts
