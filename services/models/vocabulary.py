"""Compares the token ids of two tokenizers. Pure, except for reading a folder."""

import os
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

import msgspec

from services.models.opening import open_inside

FILE = "tokenizer.json"
SHOWN = 3
"""Tokens that a sentence names."""


class _Added(msgspec.Struct):
    id: int
    content: str


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[tuple[str, float]] = msgspec.field(default_factory=dict)


class _Tokenizer(msgspec.Struct):
    model: _Model
    added_tokens: list[_Added] = msgspec.field(default_factory=list)


def vocabulary_in(folder: Path) -> dict[str, int] | None:
    """Return the ids of all tokens by `folder`'s tokenizer.json, or None if the file or its
    vocabulary is missing."""
    try:
        with os.fdopen(open_inside(folder, folder / FILE), "rb") as file:
            tokenizer = msgspec.json.decode(file.read(), type=_Tokenizer)
    except (OSError, ValueError):
        # The library that reads the tokenizer says whether it can be used at all.
        return None
    vocab = tokenizer.model.vocab
    ids = vocab if isinstance(vocab, dict) else {token: i for i, (token, _) in enumerate(vocab)}
    return {**ids, **{added.content: added.id for added in tokenizer.added_tokens}}


def vocabulary_difference(model_ids: Mapping[str, int], other: Mapping[str, int]) -> str | None:
    """Describe how `other` differs from the model's vocabulary `model_ids`. Return None if they are
    equal."""
    missing = (
        f"no {token!r}, which is {i} here" for token, i in model_ids.items() if token not in other
    )
    moved = (
        f"{token!r} as {other[token]}, which is {i} here"
        for token, i in model_ids.items()
        if token in other and other[token] != i
    )
    extra = (
        f"{token!r} as {i}, unknown here" for token, i in other.items() if token not in model_ids
    )
    for differences in (moved, missing, extra):
        if sentences := list(islice(differences, SHOWN)):
            counts = f"it has {len(other):,} tokens and the policy {len(model_ids):,}"
            return f"{counts}: {'; '.join(sentences)}"
    return None
