"""The intended key for an unknown one: a similar spelling, or the name in another system."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from pydantic import BaseModel

from headrace.config_keys import ANYWHERE, same_name
from headrace.nearest import nearest
from headrace.other_systems.table import OTHER_NAMES, OtherNames, row_of
from headrace.other_systems.values import meant_by, value_name
from services.contracts.config.parsing.type_tags import Models, fields_of, key_paths, tags_of

Problem = tuple[str, str]
"""A key path and what is wrong with its value."""
LOOKED_AT = 500
"""Keys of a section of another system."""
SHOWN = 60
"""Characters of a value that a hint quotes."""
MOST_NAMED = 10
"""Keys without a counterpart that are named."""


def unknown_key(
    root: type[BaseModel], other: type[BaseModel], path: list[str], models: Models, value: Any
) -> list[Problem]:
    """A problem for the unknown key `path` of a run whose config is a `root` (runs of the other
    type have an `other`), or, for a section of another system, for each key in
    it that has a name here, and one for all its other keys."""
    here = ".".join(path)
    section = here.removesuffix(path[-1])
    names = sorted({name for model in models for name in fields_of(model)})
    typed, near = (nearest(path[-1], names, cutoff) for cutoff in (80, 60))
    if isinstance(value, dict) and value and not typed:
        leaves = dict(islice(_leaves(value, here), LOOKED_AT))
        hints = {key: _elsewhere(root, key.split("."), leaf) for key, leaf in leaves.items()}
        if any(hints.values()):
            hinted = [(key, f"unknown key; {hint}") for key, hint in hints.items() if hint]
            others = [key.removeprefix(f"{here}.") for key, hint in hints.items() if not hint]
            return [*hinted, *([(here, _no_counterparts(others))] if others else [])]
    hint = _in_another_system(root, path, value)
    if not hint and typed:
        hint = _meant([section + typed])
    hint = hint or _elsewhere(root, path, value)
    hint = hint or _of_other_type(other, path)
    if not hint:
        hint = _meant([section + near]) if near else f"known here: {', '.join(names)}"
    return [(here, f"unknown key; {hint}")]


def _of_other_type(other: type[BaseModel], path: list[str]) -> str:
    """The hint for a key that only runs of the other type have, by its name here or in another
    system; '' for any other key."""
    known = set(key_paths(other))
    row = row_of(path)
    keys = [key for key in row.keys.split() if key in known] if row else []
    if not keys and path[-1] not in ANYWHERE:
        named = [key for key in known if key.rpartition(".")[2] == path[-1]]
        keys = sorted(named, key=lambda key: (key.count("."), key))[:1]
    if not keys:
        return ""
    (kind,) = tags_of(other)
    return f"{' and '.join(map(repr, keys))} is a key of runs of type {kind} alone: leave it out"


def _leaves(value: dict[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for key, inner in value.items():
        if isinstance(inner, dict) and inner:
            yield from _leaves(inner, f"{path}.{key}")
        else:
            yield f"{path}.{key}", inner


def _no_counterparts(keys: list[str]) -> str:
    more = f" and {len(keys) - MOST_NAMED} more" if len(keys) > MOST_NAMED else ""
    shown = ", ".join(key[:SHOWN] for key in keys[:MOST_NAMED])
    return f"unknown section; nothing here is called {shown}{more}: leave them out"


def _in_another_system(root: type[BaseModel], path: list[str], value: Any) -> str:
    """The hint for a name that another system has; '' for any other name."""
    row = row_of(path)
    return _of_row(root, row, path, value) if row else ""


def _of_row(root: type[BaseModel], row: OtherNames, path: list[str], value: Any) -> str:
    known = set(key_paths(root))
    keys = [key for key in row.keys.split() if key in known]
    if "critic" in path:
        keys = [
            critic_key if (critic_key := f"algorithm.critic.{key}") in known else key
            for key in keys
        ]
    if row.keys and not keys:
        return ""
    settings = row.values.get(value_name(value)) or {}
    # The meaning of a value in an RL run does not carry over to a supervised run.
    if known.issuperset(filter(None, settings)) and (meaning := meant_by(row.values, value)):
        return meaning if settings else f"{meaning}: see {keys[0]!r}"
    shown = str(value).lower() if isinstance(value, bool) else str(value)
    note = row.note.format(value=shown[:SHOWN])
    return " ".join(part for part in (_meant(keys, " and ") if keys else "", note) if part)


def _elsewhere(root: type[BaseModel], path: list[str], value: Any) -> str:
    """The hint for a name of another system, for a key in another section, or for a section of
    another system; '' for any other."""
    if hint := _in_another_system(root, path, value):
        return hint
    for parent in reversed(path[:-1]):
        row = OTHER_NAMES.get(parent.lower())
        if row and not row.values and (hint := _of_row(root, row, path, value)):
            return hint
    return _meant(keys) if (keys := same_name(key_paths(root), path)) else ""


def _meant(keys: list[str], conjunction: str = " or ") -> str:
    return f"did you mean {conjunction.join(map(repr, keys))}?"
