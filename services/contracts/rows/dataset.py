"""A dataset row as every process sees it."""

from typing import Any

import msgspec


class Row(msgspec.Struct, kw_only=True):
    """One prompt. Chat prompts are lists of {"role", "content"}; `answer` is the verifier's
    reference as it stood in the source (text, number or JSON), `columns` the unmapped ones."""

    prompt: str | list[dict[str, Any]]
    answer: Any = None
    columns: dict[str, Any] = {}
