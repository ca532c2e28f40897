"""The explanation of a key of a run config. Pure: a key in, an `Explained` out."""

import re
import shlex
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from services.contracts.config import RLConfig, SFTConfig
from services.contracts.config.parsing.described import as_setting, kind_of, value_for
from services.contracts.config.parsing.other_systems.table import ROWS
from services.contracts.config.parsing.type_tags import (
    TAGS,
    fields_of,
    key_paths,
    models_of,
    tags_of,
)
from services.contracts.config.parsing.unknown_key_hints import row_of, same_name

ROOTS: tuple[type[BaseModel], ...] = (RLConfig, SFTConfig)
CLOSE = 5
"""Close keys that are named for an unknown one."""
INDEX = re.compile(r"\[\d*\]")


class Place(NamedTuple):
    """A model that holds keys."""

    root: str
    """The type of run: `rl` or `sft`."""
    kind: str
    """`adamw` for an optimizer of that type; the type of run outside any union."""
    model: type[BaseModel]


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
        return Explained("", [], "", [], _keys([_root(root) for root in ROOTS]), {})
    fields = list(_fields(parts))
    if not fields:
        return None
    canonical = _canonical(parts)
    first = fields[0][1]
    places = [inner for place, field in fields for inner in _members(field, place)]
    kinds = {place.kind: _sentence(place.model.__doc__) for place in places}
    return Explained(
        canonical,
        _meanings(fields),
        as_setting(canonical, _plain(value_for(first))),
        _names_of(canonical),
        _keys(places),
        kinds if len(kinds) > 1 else {},
    )


def close_keys(key: str) -> list[str]:
    """Return keys that an unknown one may mean: by the name in another framework, by the name in
    another section, by spelling."""
    from rapidfuzz import fuzz, process

    parts = key.split(".")
    known = {path for root in ROOTS for path in key_paths(root)}
    row = row_of(parts)
    keys = [name for name in row.keys.split() if name in known] if row else []
    keys += [name for root in ROOTS for name in same_name(root, parts)]
    matches = process.extract(key, sorted(known), scorer=fuzz.WRatio, limit=CLOSE, score_cutoff=75)
    return list(dict.fromkeys([*keys, *(match[0] for match in matches)]))[:CLOSE]


def note_on(key: str) -> str:
    """Return how a value of another framework's `key` is converted; empty if it stays."""
    row = row_of(key.split("."))
    return row.note.format(value="the value") if row else ""


def _root(model: type[BaseModel]) -> Place:
    (kind,) = tags_of(model)
    return Place(kind, kind, model)


def _fields(parts: list[str]) -> Iterator[tuple[Place, FieldInfo]]:
    """Yield the places that have the key, with its field."""
    places = [_root(root) for root in ROOTS]
    for part in parts[:-1]:
        places = [
            inner
            for place in places
            if part in (fields := fields_of(place.model))
            for inner in _members(fields[part], place)
        ]
    for place in places:
        fields = fields_of(place.model)
        if parts[-1] in fields:
            yield place, fields[parts[-1]]


def _members(field: FieldInfo, around: Place) -> list[Place]:
    """Return the models that the section of a field may be. `around` has the field."""
    members = models_of(field.annotation)
    if len(members) < 2:
        return [around._replace(model=model) for model in members]
    return [Place(around.root, " or ".join(tags_of(model)), model) for model in members]


def _canonical(parts: list[str]) -> str:
    """Return the key as `--set` takes it: with 0 for the place in a list."""
    key = ".".join(parts)
    paths = (path for root in ROOTS for path in key_paths(root))
    return next((path for path in paths if path.replace(".0", "") == key), key)


def _meanings(fields: list[tuple[Place, FieldInfo]]) -> list[Meaning]:
    """Merge the places where the key means the same."""
    merged: dict[str, Meaning] = {}
    roots: dict[str, set[str]] = {}
    for place, field in fields:
        is_required = field.is_required()
        default = None if is_required else field.get_default(call_default_factory=True)
        meaning = Meaning(
            [],
            kind_of(field),
            _plain(default),
            is_required,
            _sentence(field.description),
            _choices(field.annotation),
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


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value


def _choices(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [value for inner in get_args(annotation) for value in _choices(inner)]


def _keys(places: list[Place]) -> dict[str, list[Child]]:
    """Return the keys of a section by its kinds. Kinds with equal keys stand together."""
    kinds: dict[tuple[Child, ...], list[str]] = {}
    for place in places:
        children = tuple(
            Child(name, kind_of(field), _sentence(field.description))
            for name, field in fields_of(place.model).items()
            if not (name in TAGS and field.description is None)
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
