"""Describe keys of a config in words: their type, their limits, a value that they take. Pure."""

import json
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

WORDS = {int: "integer", float: "number", str: "text", bool: "true or false", Any: "anything"}
LIMITS = {
    "gt": "> {}",
    "ge": "≥ {}",
    "lt": "< {}",
    "le": "≤ {}",
    "min_length": "at least {} long",
    "pattern": "matches `{}`",
}
_VALUES: dict[Any, Any] = {int: 1, float: 0.5, str: "TEXT", bool: True}
"""A value of each type, for a key that nothing else gives an example of."""


def type_of(annotation: Any) -> str:
    """Describe the type of a value."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if annotation in WORDS:
        return WORDS[annotation]
    if annotation in (Path, SecretStr):
        return "path" if annotation is Path else "text, secret"
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in inner)
    if origin is Annotated:
        return type_of(inner[0])
    if origin in (Union, UnionType):
        kinds = [type_of(member) for member in inner if member is not NoneType]
        return " or ".join([*dict.fromkeys(kinds), *(["null"] if NoneType in inner else [])])
    if origin is tuple:
        return f"list of {len(inner)} {type_of(inner[0])}s"
    return f"list of {type_of(inner[0])}s" if origin is list else "mapping"


def limits_of(field: FieldInfo) -> str:
    """Describe the bounds of the field's value."""
    limits = [
        text.format(value)
        for limit in field.metadata
        for name, text in LIMITS.items()
        if (value := getattr(limit, name, None)) is not None
    ]
    return ", ".join(limits).replace("at least 1 long", "not empty")


def kind_of(field: FieldInfo) -> str:
    """Describe the type of the field's value, and its bounds."""
    limits = limits_of(field)
    return type_of(field.annotation) + (f", {limits}" if limits else "")


def value_for(field: FieldInfo) -> Any:
    """Return a value that the field takes: its default, or one of its type."""
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    if default not in (None, "", [], {}):
        return default
    value = _of_type(field.annotation)
    bounds = {
        name: getattr(limit, name)
        for limit in field.metadata
        for name in ("ge", "gt")
        if hasattr(limit, name)
    }
    if not isinstance(value, int | float) or isinstance(value, bool):
        return value
    return max(value, bounds.get("ge", value), bounds.get("gt", value - 1) + 1)


def _of_type(annotation: Any) -> Any:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType, Annotated):
        members = inner[:1] if origin is Annotated else inner
        return next((_of_type(member) for member in members if member is not NoneType), None)
    if origin is Literal:
        return inner[0]
    if origin in (list, tuple):
        return [_of_type(item) for item in inner]
    return _VALUES.get(annotation, {})


def as_setting(key: str, value: Any) -> str:
    """Return the argument of `--set` that gives `key` this value, before quoting for a shell."""
    shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"{key}={shown}"
