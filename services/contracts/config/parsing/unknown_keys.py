"""What a key that is not known was meant to be: one that is spelled much like it, or what another
system calls so."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from pydantic import BaseModel

from services.contracts.config.parsing.other_names import OTHER_NAMES
from services.contracts.config.parsing.tags import Models, fields_of, key_paths
from services.contracts.nearest import nearest

Problem = tuple[str, str]
"""A key path and what is wrong with its value."""
LOOKED_AT = 500
"""Keys of a section of another system."""


def unknown_key(
    root: type[BaseModel], path: list[str], models: Models, value: Any
) -> list[Problem]:
    """A problem for the unknown key `path`, or, for a section of another system, for each key in
    it that has a name here."""
    here = ".".join(path)
    if len(path) == 1 and isinstance(value, dict):
        leaves = islice(_leaves(value, here), LOOKED_AT)
        inner = ((key, _elsewhere(root, key.rpartition(".")[2])) for key in leaves)
        if found := [(key, f"unknown key; {_meant(known)}") for key, known in inner if known]:
            return found
    section = here.removesuffix(path[-1])
    names = sorted({name for model in models for name in fields_of(model)})
    # A name that is much like one here is a typing error, whatever else it means elsewhere.
    typed, near = (nearest(path[-1], names, cutoff) for cutoff in (80, 60))
    keys = [section + typed] if typed else _elsewhere(root, path[-1])
    keys = keys or ([section + near] if near else [])
    hint = _meant(keys) if keys else f"known here: {', '.join(names)}"
    return [(here, f"unknown key; {hint}")]


def _leaves(value: dict[str, Any], path: str) -> Iterator[str]:
    for key, inner in value.items():
        if isinstance(inner, dict):
            yield from _leaves(inner, f"{path}.{key}")
        else:
            yield f"{path}.{key}"


def _elsewhere(root: type[BaseModel], name: str) -> list[str]:
    """The keys that other systems call `name`, or that are called so in another section."""
    keys = dict.fromkeys(key_paths(root))
    if (key := OTHER_NAMES.get(name.lower())) in keys:
        return [key]
    return [key for key in keys if key.rpartition(".")[2] == name][:3]


def _meant(keys: list[str]) -> str:
    return f"did you mean {' or '.join(map(repr, keys))}?"
