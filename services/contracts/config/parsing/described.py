"""Describe keys of a config in words: their type and their limits. Pure."""

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
