"""The explanation of a key of a run config. Pure: a key in, an `Explained` out."""

import re
import shlex
from collections.abc import Iterator
from typing import Any, NamedTuple

from headrace.cli.values import as_setting
from headrace.config_keys import TAGS, same_name
from headrace.nearest import similarity
from headrace.other_systems.table import ROWS, row_of
from headrace.run_schema import (
    ROOTS,
    Field,
    Schema,
    choices_of,
    fields_of,
    key_paths,
    kind_of,
    members_of,
    root,
    sections_of,
    tags_of,
    value_for,
)

CLOSE = 5
"""Close keys that are named for an unknown one."""
ALIKE = 70
"""The least similarity of a close key, of 100."""
INDEX = re.compile(r"\[\d*\]")


class Place(NamedTuple):
    """A section that holds keys."""

    root: str
    """The type of run: `rl` or `sft`."""
    kind: str
    """`adamw` for an optimizer of that type; the type of run outside any union."""
    section: Schema


class Meaning(NamedTuple):
    """The meaning of a key in some kinds of its section."""

    kinds: list[str]
    type: str
    default: Any
    is_required: bool
    description: str
    values: list[Any]
    """The values that it takes, if they are few. Empty: any value of the type."""


class Child(NamedTuple):
    """A key inside a section."""

    name: str
    type: str
    description: str


class Explained(NamedTuple):
    """A key, or a section, of the run config."""

    key: str
    meanings: list[Meaning]
    example: str
    """An argument of `--set`."""
    elsewhere: list[str]
    """The names that other frameworks have for the key."""
    keys: dict[str, list[Child]]
    """The keys inside the section, by the kind of section; empty for a plain value."""
    kinds: dict[str, str]
    """A description of each kind of the section."""


def explained(key: str) -> Explained | None:
    """Explain `key`: `optimizer.lr`, `rewards.0.weight`. Return None for an unknown key."""
    parts = [part for part in INDEX.sub("", key).strip(".").split(".") if not part.isdecimal()]
    if parts in ([], [""]):
        return Explained("", [], "", [], _keys(_roots()), {})
    fields = list(_fields(parts))
    if not fields:
        return None
    canonical = _canonical(parts)
    first = fields[0][1]
    places = [inner for place, field in fields for inner in _members(field, place)]
    kinds = {place.kind: _sentence(place.section.get("description")) for place in places}
    return Explained(
        canonical,
        _meanings(fields),
        as_setting(canonical, value_for(first)),
        _names_of(canonical),
        _keys(places),
        kinds if len(kinds) > 1 else {},
    )


def close_keys(key: str) -> list[str]:
    """Return keys that an unknown one may mean: by the name in another framework, by the name in
    another section, by spelling."""
    parts = key.split(".")
    known = {path for kind in ROOTS for path in key_paths(kind)}
    row = row_of(parts)
    keys = [name for name in row.keys.split() if name in known] if row else []
    keys += [name for kind in ROOTS for name in same_name(key_paths(kind), parts)]
    # A key is meant by its whole path, or by its own name alone.
    scores = {
        path: max(similarity(key, path), similarity(parts[-1], path.rpartition(".")[2]) - 1)
        for path in sorted(known)
    }
    near = sorted((path for path in scores if scores[path] >= ALIKE), key=lambda p: -scores[p])
    return list(dict.fromkeys([*keys, *near]))[:CLOSE]


def note_on(key: str) -> str:
    """Return how a value of another framework's `key` is converted; empty if it stays."""
    row = row_of(key.split("."))
    return row.note.format(value="the value") if row else ""


def _roots() -> list[Place]:
    return [Place(kind, kind, root(kind)) for kind in ROOTS]


def _fields(parts: list[str]) -> Iterator[tuple[Place, Field]]:
    """Yield the places that have the key, with its field."""
    places = _roots()
    for part in parts[:-1]:
        places = [
            inner
            for place in places
            if part in (fields := fields_of(place.section))
            for inner in _members(fields[part], place)
        ]
    for place in places:
        fields = fields_of(place.section)
        if parts[-1] in fields:
            yield place, fields[parts[-1]]


def _members(field: Field, around: Place) -> list[Place]:
    """Return the sections that a field may be. `around` has the field."""
    members = sections_of(field.schema)
    if len(members) < 2:
        return [around._replace(section=section) for section in members]
    return [Place(around.root, " or ".join(tags_of(section)), section) for section in members]


def _canonical(parts: list[str]) -> str:
    """Return the key as `--set` takes it: with 0 for the place in a list."""
    key = ".".join(parts)
    paths = (path for kind in ROOTS for path in key_paths(kind))
    return next((path for path in paths if path.replace(".0", "") == key), key)


def _meanings(fields: list[tuple[Place, Field]]) -> list[Meaning]:
    """Merge the places where the key means the same."""
    merged: dict[str, Meaning] = {}
    roots: dict[str, set[str]] = {}
    for place, field in fields:
        meaning = Meaning(
            [],
            kind_of(field),
            field.default,
            field.is_required,
            _sentence(field.description),
            [value for member in members_of(field.schema) for value in choices_of(member)],
        )
        kinds = merged.setdefault(repr(meaning[1:]), meaning).kinds
        roots.setdefault(repr(meaning[1:]), set()).add(place.root)
        if place.kind not in kinds:
            kinds.append(place.kind)
    named = [kind for meaning in merged.values() for kind in meaning.kinds]
    for key, meaning in merged.items():
        for i, kind in enumerate(meaning.kinds):
            # The same kind of section may have another default in supervised runs.
            if named.count(kind) > 1:
                meaning.kinds[i] = f"{kind} of {' and '.join(sorted(roots[key]))} runs"
    return list(merged.values())


def _keys(places: list[Place]) -> dict[str, list[Child]]:
    """Return the keys of a section by its kinds. Kinds with equal keys stand together."""
    kinds: dict[tuple[Child, ...], list[str]] = {}
    for place in places:
        children = tuple(
            Child(name, kind_of(field), _sentence(field.description))
            for name, field in fields_of(place.section).items()
            if not (name in TAGS and not field.description)
        )
        names = kinds.setdefault(children, [])
        if place.kind not in names:
            names.append(place.kind)
    return {", ".join(names): list(children) for children, names in kinds.items() if children}


def _sentence(text: str | None) -> str:
    return " ".join((text or "").split())


def _names_of(key: str) -> list[str]:
    """Return the names that other frameworks have for a key."""
    return list(
        dict.fromkeys(name for row in ROWS if key in row.keys.split() for name in row.names.split())
    )


def in_shell(example: str) -> str:
    """Return the option `--set` with `example`, quoted for a shell."""
    return f"--set {shlex.quote(example)}"
