"""Chooses the conversations of the next forward pass. Pure."""

from collections.abc import Sequence

# Of more, only so many are looked at: sorting them all each time would cost more than it saves.
WINDOW = 512


def next_batch(lengths: Sequence[int], batch_tokens: int) -> list[int]:
    """Indices of the next batch. `lengths`: tokens of each waiting conversation, oldest first.

    Takes the oldest, and of the others those whose length is nearest to its own, so that little is
    padded: at most `batch_tokens` with padding, but at least one. So none waits for ever.
    """
    order = sorted(range(min(len(lengths), WINDOW)), key=lambda index: lengths[index])
    first = last = order.index(0)
    while True:
        wider = [end for end in (first - 1, last + 1) if 0 <= end < len(order)]
        if not wider:
            break
        oldest = lengths[0]
        end = min(wider, key=lambda end: abs(lengths[order[end]] - oldest))
        longest = lengths[order[max(last, end)]]
        if longest * (last - first + 2) > batch_tokens:
            break
        first, last = min(first, end), max(last, end)
    return sorted(order[first : last + 1])
