"""The intended key for an unknown one: a similar spelling, or the name in another system."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from pydantic import BaseModel

from services.contracts.config.parsing.other_names import OTHER_NAMES
from services.contracts.config.parsing.other_values import meant_by
from services.contracts.config.parsing.tags import Models, fields_of, key_paths
from services.contracts.nearest import nearest

Problem = tuple[str, str]
"""A key path and what is wrong with its value."""
LOOKED_AT = 500
"""Keys of a section of another system."""
SHOWN = 60
"""Characters of a value that a hint quotes."""


def unknown_key(
    root: type[BaseModel], path: list[str], models: Models, value: Any
) -> list[Problem]:
    """A problem for the unknown key `path`, or, for a section of another system, for each key in
    it that has a name here."""
    here = ".".join(path)
    if len(path) == 1 and isinstance(value, dict):
        leaves = islice(_leaves(value, here), LOOKED_AT)
        inner = ((key, _elsewhere(root, key.split("."), leaf)) for key, leaf in leaves)
        if found := [(key, f"unknown key; {hint}") for key, hint in inner if hint]:
            return found
    section = here.removesuffix(path[-1])
    names = sorted({name for model in models for name in fields_of(model)})
    typed, near = (nearest(path[-1], names, cutoff) for cutoff in (80, 60))
    hint = _in_another_system(root, path, value)
    if not hint and typed:
        hint = _meant([section + typed])
    hint = hint or _elsewhere(root, path, value)
    if not hint:
        hint = _meant([section + near]) if near else f"known here: {', '.join(names)}"
    return [(here, f"unknown key; {hint}")]


def _leaves(value: dict[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for key, inner in value.items():
        if isinstance(inner, dict):
            yield from _leaves(inner, f"{path}.{key}")
        else:
            yield f"{path}.{key}", inner


def _in_another_system(root: type[BaseModel], path: list[str], value: Any) -> str:
    """The hint for a name that another system has; '' for any other name."""
    row = OTHER_NAMES.get(path[-1].lower())
    if row is None:
        return ""
    known = set(key_paths(root))
    keys = [key for key in row.keys.split() if key in known]
    if "critic" in path:
        keys = [own if (own := f"algorithm.critic.{key}") in known else key for key in keys]
    if row.keys and not keys:
        return ""
    if sentence := meant_by(row.values, value):
        return sentence
    note = row.note.format(value=str(value)[:SHOWN])
    return " ".join(part for part in (_meant(keys, " and ") if keys else "", note) if part)


def _elsewhere(root: type[BaseModel], path: list[str], value: Any) -> str:
    """The hint for a name of another system, or of a key in another section; '' for any other."""
    if hint := _in_another_system(root, path, value):
        return hint
    keys = [key for key in dict.fromkeys(key_paths(root)) if key.rpartition(".")[2] == path[-1]]
    return _meant(keys[:3]) if keys else ""


def _meant(keys: list[str], conjunction: str = " or ") -> str:
    return f"did you mean {conjunction.join(map(repr, keys))}?"
