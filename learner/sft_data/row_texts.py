"""Texts of the rows that a supervised run trains on, to train its tokenizer."""

import json
from collections.abc import Iterator
from math import gcd
from typing import Any

from learner.store.run_store import RunStore
from services.contracts.config import SFTConfig
from services.contracts.rows.dataset import Row
from services.volume import Volume

MOST = 64 << 20
"""Characters to read. More characters change few merges."""


def texts(config: SFTConfig, store: RunStore, volume: Volume) -> Iterator[str]:
    """Yield texts of prompts and answers, about equally many characters of each dataset, spread
    over all its rows."""
    readers = [store.dataset(component.dataset, volume) for component in config.data.components]
    for reader in readers:
        remaining, rows = MOST // len(readers), len(reader)
        # A step without a common divisor with the number of rows visits each row once.
        step = next(n for n in range(int(rows * 0.618) + 1, rows + 2) if gcd(n, rows) == 1)
        for place in range(rows):
            for text in texts_of(reader.row(place * step % rows)):
                remaining -= len(text)
                yield text
            if remaining < 0:
                break


def texts_of(row: Row) -> Iterator[str]:
    """Yield what a chat template writes of a row: for a chat also roles, tools and calls."""
    turns: list[Any] = row.prompt if isinstance(row.prompt, list) else [{"content": row.prompt}]
    answer = row.answer if isinstance(row.answer, dict) else {"content": row.answer}
    for turn in (*turns, answer):
        for text in (turn.get("role"), turn.get("content")):
            if isinstance(text, str):
                yield text
        if calls := turn.get("tool_calls"):
            yield _json(calls)
    if tools := row.columns.get("tools"):
        yield tools if isinstance(tools, str) else _json(tools)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
