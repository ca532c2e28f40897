"""The keys of a run config, as its JSON Schema has them: `schema.json`, which `make client` writes.

The models that check a config belong to the server, and take 0.2 s to build. All functions here are
pure, apart from reading the file once.
"""

import functools
import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any, NamedTuple

from headrace.config_keys import TAGS

Schema = dict[str, Any]
ROOTS = {"rl": "RLConfig", "sft": "SFTConfig"}
"""The definitions of the two types of run."""
UNIONS = ("anyOf", "oneOf", "allOf")
WORDS = {"integer": "integer", "number": "number", "string": "text", "boolean": "true or false"}
FORMATS = {"path": "path", "password": "text, secret"}
LIMITS = {
    "exclusiveMinimum": "> {}",
    "minimum": "≥ {}",
    "exclusiveMaximum": "< {}",
    "maximum": "≤ {}",
    "minLength": "at least {} long",
    "minItems": "at least {} long",
    "pattern": "matches `{}`",
}
VALUES: Schema = {"integer": 1, "number": 0.5, "string": "TEXT", "boolean": True}
"""A value of each type, for a key that nothing else gives an example of."""


class Field(NamedTuple):
    """A key of a section."""

    schema: Schema
    is_required: bool

    @property
    def default(self) -> Any:
        """Its default; None if it is required."""
        return self.schema.get("default")

    @property
    def description(self) -> str:
        """Its meaning."""
        schema = self.schema if "description" in self.schema else resolved(self.schema)
        return str(schema.get("description", ""))


@functools.cache
def whole() -> Schema:
    """Return the JSON Schema of run configs of both types."""
    schema: Schema = json.loads((files("headrace") / "schema.json").read_text("utf-8"))
    return schema


def root(kind: str) -> Schema:
    """Return the section at the top of a run of this type."""
    section: Schema = whole()["$defs"][ROOTS[kind]]
    return section


def one_type(kind: str) -> Schema:
    """Return the JSON Schema of runs of one type alone, with the definitions that it needs."""
    definitions, needed = whole()["$defs"], [ROOTS[kind]]
    for name in needed:
        needed += sorted(_references(definitions[name]) - set(needed))
    kept = {name: definitions[name] for name in sorted(needed[1:])}
    return {"$defs": kept, **definitions[ROOTS[kind]]}


def _references(schema: Any) -> set[str]:
    if isinstance(schema, list):
        return {name for inner in schema for name in _references(inner)}
    if not isinstance(schema, dict):
        return set()
    named = {schema["$ref"].rpartition("/")[2]} if isinstance(schema.get("$ref"), str) else set()
    return named | {name for inner in schema.values() for name in _references(inner)}


def fields_of(section: Schema) -> dict[str, Field]:
    """Return the keys of a section."""
    required = section.get("required", ())
    return {name: Field(schema, name in required) for name, schema in section["properties"].items()}


def sections_of(schema: Schema) -> list[Schema]:
    """Return the sections that a value may be, items of a list included."""
    schema = resolved(schema)
    if "properties" in schema:
        return [schema]
    inner = [member for union in UNIONS for member in schema.get(union, ())]
    if isinstance(schema.get("items"), dict):
        inner.append(schema["items"])
    return [section for member in inner for section in sections_of(member)]


def resolved(schema: Schema) -> Schema:
    """Return the definition that a schema refers to, or the schema itself."""
    if "$ref" not in schema:
        return schema
    definition: Schema = whole()["$defs"][schema["$ref"].rpartition("/")[2]]
    return definition


def members_of(schema: Schema) -> list[Schema]:
    """Return the members of a union, or the schema alone."""
    schema = resolved(schema)
    inner = [member for union in UNIONS for member in schema.get(union, ())]
    return [member for other in inner for member in members_of(other)] if inner else [schema]


def choices_of(schema: Schema) -> list[Any]:
    """Return the values that are listed one by one: those of a Literal."""
    schema = resolved(schema)
    return list(schema["enum"]) if "enum" in schema else [schema[k] for k in schema if k == "const"]


def tag_of(section: Schema) -> str:
    """Return the key that tells a section from the other members of its union, or ''."""
    properties = section["properties"]
    return next((tag for tag in TAGS if tag in properties and choices_of(properties[tag])), "")


def tags_of(section: Schema) -> tuple[str, ...]:
    """Return the values of the tag that mean `section`; empty outside any union."""
    tag = tag_of(section)
    return tuple(map(str, choices_of(section["properties"][tag]))) if tag else ()


@functools.cache
def key_paths(kind: str) -> tuple[str, ...]:
    """Return all keys of runs of this type as paths: `optimizer.lr`, `rewards.0.weight`."""
    return tuple(dict.fromkeys(_paths(root(kind), "")))


def _paths(section: Schema, prefix: str) -> Iterator[str]:
    for name, field in fields_of(section).items():
        yield prefix + name
        place = ".0" if field.schema.get("type") == "array" else ""
        for inner in sections_of(field.schema):
            yield from _paths(inner, f"{prefix}{name}{place}.")


def filled(section: Schema, document: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a section with the defaults of all other keys."""
    return {
        name: _filled(field, document.get(name, field.default))
        for name, field in fields_of(section).items()
    }


def _filled(field: Field, value: Any) -> Any:
    sections = sections_of(field.schema)
    if isinstance(value, list):
        return [
            filled(_meant(sections, item, None), item)
            if sections and isinstance(item, dict)
            else item
            for item in value
        ]
    if not (sections and isinstance(value, dict)):
        return value
    return filled(_meant(sections, value, field.default), value)


def _meant(sections: list[Schema], value: dict[str, Any], default: Any) -> Schema:
    """Return the section that `value` is: by its tag, else by that of the default."""
    tags = {tag: section for section in sections for tag in tags_of(section)}
    name = tag_of(sections[0])
    usual = default.get(name) if isinstance(default, dict) else None
    return tags.get(str(value.get(name, usual)), sections[0])


def type_of(schema: Schema) -> str:
    """Describe the type of a value."""
    schema = resolved(schema)
    if choices := choices_of(schema):
        return " or ".join(f"`{value}`" for value in choices)
    if any(union in schema for union in UNIONS):
        members = members_of(schema)
        kinds = [type_of(member) for member in members if member.get("type") != "null"]
        has_null = len(kinds) < len(members)
        return " or ".join([*dict.fromkeys(kinds), *(["null"] if has_null else [])])
    if schema.get("format") in FORMATS:
        return FORMATS[schema["format"]]
    kind = schema.get("type")
    if kind == "array" and "prefixItems" in schema:
        items = schema["prefixItems"]
        return f"list of {len(items)} {type_of(items[0])}s"
    if kind == "array":
        return f"list of {type_of(schema.get('items', {}))}s"
    return WORDS.get(str(kind), "anything" if kind is None else "mapping")


def kind_of(field: Field) -> str:
    """Describe the type of the field's value, and its bounds."""
    limits: list[str] = []
    for member in members_of(field.schema):
        if "prefixItems" not in member:
            limits += [text.format(member[name]) for name, text in LIMITS.items() if name in member]
    shown = ", ".join(dict.fromkeys(limits)).replace("at least 1 long", "not empty")
    return type_of(field.schema) + (f", {shown}" if shown else "")


def value_for(field: Field) -> Any:
    """Return a value that the field takes: its default, or one of its type."""
    if field.default not in (None, "", [], {}):
        return field.default
    value = _of_type(field.schema)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return value
    member = next(m for m in members_of(field.schema) if m.get("type") in ("integer", "number"))
    low = member.get("minimum", value)
    return max(value, low, member.get("exclusiveMinimum", value - 1) + 1)


def _of_type(schema: Schema) -> Any:
    schema = resolved(schema)
    if choices := choices_of(schema):
        return choices[0]
    if any(union in schema for union in UNIONS):
        known = (m for m in members_of(schema) if m.get("type") != "null")
        return next((_of_type(member) for member in known), None)
    if schema.get("type") == "array":
        return [_of_type(item) for item in schema.get("prefixItems", [schema.get("items", {})])]
    return VALUES.get(str(schema.get("type")), {})


def may_be(schema: Schema, value: Any) -> bool:
    """Return False if the schema cannot take `value`. The gateway decides the rest."""
    schema = resolved(schema)
    if any(union in schema for union in UNIONS):
        return any(may_be(member, value) for member in members_of(schema))
    if choices := choices_of(schema):
        # A key that can be off may have a validator that takes `true` for its usual value.
        kinds = {type(choice) for choice in choices}
        return value in choices or (isinstance(value, bool) and bool in kinds)
    match schema.get("type"):
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool | str) or value in (0, 1)
        case "integer" | "number" as kind:
            number = _number(value)
            if number is None or not _is_within(schema, number):
                return False
            return kind == "number" or number == int(number)
        case "string":
            return isinstance(value, str)
        case "array":
            return isinstance(value, list) and _are_items(schema, value)
        case "object":
            return isinstance(value, dict)
    return True


def _number(value: Any) -> float | None:
    """Return a number, or a text that is one."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def _is_within(schema: Schema, value: float) -> bool:
    return (
        schema.get("minimum", value) <= value <= schema.get("maximum", value)
        and not value <= schema.get("exclusiveMinimum", value - 1)
        and not value >= schema.get("exclusiveMaximum", value + 1)
    )


def _are_items(schema: Schema, values: list[Any]) -> bool:
    least, most = schema.get("minItems", 0), schema.get("maxItems", len(values))
    kinds = schema.get("prefixItems") or [schema.get("items", {})] * len(values)
    return least <= len(values) <= most and all(map(may_be, kinds, values))


def is_text(schema: Schema) -> bool:
    """Return whether a value of this schema is text, or text or null."""
    members = [member for member in members_of(schema) if member.get("type") != "null"]
    return bool(members) and all(
        (member.get("type") == "string" and member.get("format") not in ("path",))
        or (bool(choices_of(member)) and all(isinstance(v, str) for v in choices_of(member)))
        for member in members
    )
