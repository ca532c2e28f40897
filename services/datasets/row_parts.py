"""Find the rows of a dataset with parts of a chat that many chat templates leave out."""

import numpy as np
from numpy.typing import NDArray

from services.datasets.stored_rows import DatasetReader

CHAT = ("prompt", "answer")
PARTS = {
    "tool_calls": (CHAT, r'"tool_calls":\[\{'),
    "function_call": (CHAT, r'"function_call":\{'),
    "reasoning_content": (CHAT, r'"reasoning_content":"[^"]'),
    "tools": (("columns",), r'"tools":"?\[[^\]]'),
}
"""Columns, and what the JSON of a row with the part matches. In a text the quotes are escaped."""


def rows_with_parts(reader: DatasetReader) -> dict[str, NDArray[np.int64]]:
    """Return the indices of the rows with each part. Parts that no row has are left out."""
    matching = {name: reader.matching(*PARTS[name]) for name in PARTS}
    return {name: rows for name, rows in matching.items() if len(rows)}
