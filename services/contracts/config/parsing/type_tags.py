"""Find the member of a union that a section is: by its tag (`type`, `source`), else by its default.

Pure. `optimizer: {lr: 1e-4}` means the default optimizer, but pydantic requires the tag of a union
whose value is written out.
"""

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

TAGS = ("type", "source")
Models = list[type[BaseModel]]


def fields_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of `model` by the keys that a user writes."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def models_of(annotation: Any) -> Models:
    """The models that a value of this annotation may be (items of a list included)."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Annotated, Union, UnionType, list):
        return [model for inner in get_args(annotation) for model in models_of(inner)]
    return []


def key_paths(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """All keys of `model` as paths: `optimizer.lr`, `rewards.0.weight`. A key of several members of
    a union comes several times."""
    for name, field in fields_of(model).items():
        yield prefix + name
        place = ".0" if get_origin(field.annotation) is list else ""
        for inner in models_of(field.annotation):
            yield from key_paths(inner, f"{prefix}{name}{place}.")


def tags_of(model: type[BaseModel]) -> tuple[str, ...]:
    """Return the tag values that mean `model`, empty if `model` is outside any union."""
    field = model.model_fields.get(tag_name(model))
    return tuple(map(str, get_args(field.annotation))) if field is not None else ()


def tag_name(model: type[BaseModel]) -> str:
    """Return the key that tells `model` from the other members of its union, or '' if no key
    does."""
    fields = model.model_fields
    return next((name for name in TAGS if name in fields and get_args(fields[name].annotation)), "")


def with_default_tags(model: type[BaseModel], raw: dict[str, Any]) -> dict[str, Any]:
    """`raw`, a value for `model`, with the missing tags of its sections.

    A missing tag is that of the field's default, else that of the member whose tag has a default.
    A section with a key that only other members have gets none: the user means one of them.
    """
    filled = dict(raw)
    for name, field in model.model_fields.items():
        value = raw.get(name)
        if isinstance(value, dict):
            filled[name] = _section(field, value)
    return filled


def _section(field: FieldInfo, value: dict[str, Any]) -> dict[str, Any]:
    members = models_of(field.annotation)
    if not members:
        return value
    if len(members) == 1:
        return with_default_tags(members[0], value)
    key = tag_name(members[0])
    if key not in value:
        member = _default_member(field, members, key)
        if member is None or _means_another(value, member, members):
            return value
        tag = getattr(field.default, key, None) or member.model_fields[key].default
        return with_default_tags(member, {key: tag, **value})
    chosen = next((member for member in members if value[key] in tags_of(member)), None)
    return with_default_tags(chosen, value) if chosen else value


def _default_member(field: FieldInfo, members: Models, key: str) -> type[BaseModel] | None:
    if isinstance(field.default, BaseModel):
        return type(field.default)
    return next((m for m in members if not m.model_fields[key].is_required()), None)


def _means_another(value: dict[str, Any], member: type[BaseModel], members: Models) -> bool:
    elsewhere = {name for other in members for name in fields_of(other)}
    return any(name in elsewhere and name not in fields_of(member) for name in value)
