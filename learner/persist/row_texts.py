"""Texts of the rows that a supervised run trains on, for a tokenizer of its own."""

from collections.abc import Iterator
from math import gcd

from learner.store.run_store import RunStore
from services.contracts.config import SFTConfig
from services.volume import Volume

MOST = 64 << 20
"""Characters: more change few merges."""


def texts(config: SFTConfig, store: RunStore, volume: Volume) -> Iterator[str]:
    """Prompts and answers, as many of each dataset, from all over it."""
    readers = [store.dataset(one.dataset, volume) for one in config.data.components]
    for reader in readers:
        left, rows = MOST // len(readers), len(reader)
        # A step that has no divisor in common with the number of rows leads to each of them.
        step = next(n for n in range(int(rows * 0.618) + 1, rows + 2) if gcd(n, rows) == 1)
        for place in range(rows):
            row = reader.row(place * step % rows)
            chat = row.prompt if isinstance(row.prompt, list) else [{"content": row.prompt}]
            for text in [*(turn.get("content") for turn in chat), row.answer]:
                if isinstance(text, str):
                    left -= len(text)
                    yield text
            if left < 0:
                break
