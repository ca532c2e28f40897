"""Overrides over a recipe: mappings merge key by key, everything else is replaced.

One exception. A section that is one of several kinds (the optimizer, a loss, a correction, …) is
replaced as a whole when the override chooses another kind: the keys of AdamW mean nothing to
Muon, and a learning rate that fits one would ruin the other.
"""

from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from services.contracts.config import MidtrainConfig, RLConfig

Models = list[type[BaseModel]]


def merged(base: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """`overrides` over `base`; neither is changed. A config of another `type` replaces all."""
    kind = base.get("type", "rl")
    if overrides.get("type", kind) != kind:
        return dict(overrides)
    return _merged(base, overrides, [MidtrainConfig if kind == "midtrain" else RLConfig])


def _merged(base: dict[str, Any], overrides: dict[str, Any], models: Models) -> dict[str, Any]:
    result = dict(base)
    for key, value in overrides.items():
        there = base.get(key)
        if not (isinstance(there, dict) and isinstance(value, dict)):
            result[key] = value
            continue
        fields = [model.model_fields[key] for model in models if key in model.model_fields]
        kinds = [kind for field in fields for kind in _models(field.annotation)]
        tag = next((f.discriminator for f in fields if isinstance(f.discriminator, str)), None)
        if tag is not None:
            old = _of_kind(kinds, tag, there.get(tag, _default_tag(fields, tag)))
            new = _of_kind(kinds, tag, value[tag]) if tag in value else old
            if old != new:
                result[key] = value
                continue
            kinds = new
        result[key] = _merged(there, value, kinds)
    return result


def _of_kind(models: Models, tag: str, value: Any) -> Models:
    return [model for model in models if value in get_args(model.model_fields[tag].annotation)]


def _default_tag(fields: list[FieldInfo], tag: str) -> Any:
    defaults = (getattr(field.default, tag, None) for field in fields)
    return next((default for default in defaults if default is not None), None)


def _models(annotation: Any) -> Models:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Annotated, Union, UnionType):
        return [model for inner in get_args(annotation) for model in _models(inner)]
    return []
