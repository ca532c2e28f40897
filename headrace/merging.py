"""Overrides over a recipe: mappings merge key by key, everything else is replaced.

Two exceptions. A section that is one of several kinds (the optimizer, a loss, a correction, …) is
replaced as a whole when the override chooses another kind: the keys of AdamW mean nothing to
Muon, and a learning rate that fits one would ruin the other. And a mapping whose keys are numbers
changes those places of a list: `rewards: {0: {weight: 2}}`, or `rewards.0.weight=2`.
"""

from typing import Any

from headrace.run_schema import (
    UNIONS,
    Schema,
    choices_of,
    fields_of,
    resolved,
    root,
    sections_of,
)


class NoSuchPlace(ValueError):
    """A list has no such place."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}")
        self.key, self.problem = key, problem


def merged(base: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """`overrides` over `base`; neither is changed. A config of another `type` replaces all.

    Raises NoSuchPlace for a place that a list of `base` does not have.
    """
    kind = base.get("type", "rl")
    if overrides.get("type", kind) != kind:
        return dict(overrides)
    return _merged(base, overrides, [root("sft" if kind == "sft" else "rl")], "")


def place_in(values: list[Any], key: Any, path: str) -> int:
    """Return the index that `key` names in the list at `path`. Raises NoSuchPlace if the list has
    no such index."""
    place = str(key)
    if place.isdecimal() and len(place) < 10 and int(place) < len(values):
        return int(place)
    there = f"its places are 0 to {len(values) - 1}" if values else "it is empty"
    problem = f"{path} is a list without a place {place[:80]!r}: {there}"
    raise NoSuchPlace(f"{path}.{place[:80]}", problem)


def _merged(
    base: dict[str, Any], overrides: dict[str, Any], sections: list[Schema], path: str
) -> dict[str, Any]:
    result = dict(base)
    known = [fields_of(section) for section in sections]
    for key, value in overrides.items():
        schemas = [fields[key].schema for fields in known if key in fields]
        kinds = [kind for schema in schemas for kind in sections_of(schema)]
        result[key] = _laid(base.get(key), value, schemas, kinds, f"{path}.{key}".lstrip("."))
    return result


def _laid(there: Any, value: Any, schemas: list[Schema], kinds: list[Schema], path: str) -> Any:
    """Return `value` merged over `there`, the present value at `path`. A section that gets another
    `type` is replaced, not merged. `schemas`: those of the fields that may hold it; `kinds`: the
    sections that it may be."""
    if isinstance(there, list) and isinstance(value, dict) and any(map(_is_number, value)):
        places = list(there)
        for key, inner in value.items():
            place = place_in(there, key, path)
            places[place] = _laid(places[place], inner, [], kinds, f"{path}.{key}")
        return places
    if not (isinstance(there, dict) and isinstance(value, dict)):
        return value
    tag = next(filter(None, map(_tag_of, schemas)), None)
    if tag is not None:
        old = _of_kind(kinds, tag, there.get(tag, _default_tag(schemas, tag)))
        new = _of_kind(kinds, tag, value[tag]) if tag in value else old
        if old != new:
            return value
        kinds = new
    return _merged(there, value, kinds, path)


def _is_number(key: Any) -> bool:
    return str(key).removeprefix("-").isdecimal()


def _tag_of(schema: Schema) -> str | None:
    """Return the key that tells the members of a union apart, or None."""
    schema = resolved(schema)
    if "discriminator" in schema:
        return str(schema["discriminator"]["propertyName"])
    inner = (member for union in UNIONS for member in schema.get(union, ()))
    return next(filter(None, map(_tag_of, inner)), None)


def _of_kind(sections: list[Schema], tag: str, value: Any) -> list[Schema]:
    return [
        section
        for section in sections
        if tag in section["properties"] and value in choices_of(section["properties"][tag])
    ]


def _default_tag(schemas: list[Schema], tag: str) -> Any:
    defaults = (schema.get("default") for schema in schemas)
    return next(
        (value[tag] for value in defaults if isinstance(value, dict) and tag in value), None
    )
