"""Chooses the conversations of the next forward pass. Pure."""

from collections.abc import Sequence

# Conversations that a batch is chosen from: sorting a long queue costs more than it saves.
WINDOW = 512


def next_batch(lengths: Sequence[int], batch_tokens: int) -> list[int]:
    """Return the indices of the next batch. `lengths` has the tokens of each waiting conversation,
    oldest first.

    The batch takes the oldest, then the conversations of the most similar length, so that padding
    stays small. With padding it has at most `batch_tokens` tokens, but always one conversation. So
    no conversation waits for ever.
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
