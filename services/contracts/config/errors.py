"""From raw values to a run config, with errors that say which key, why, and the way out."""

from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails
from rapidfuzz import process

from services.contracts.config.run import MidtrainConfig, RLConfig, RunConfig

_ADAPTER: TypeAdapter[RLConfig | MidtrainConfig] = TypeAdapter(RunConfig)


class ConfigError(ValueError):
    """A run config that cannot be used. `problems` has (key path, sentence) pairs."""

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        self.problems = problems
        super().__init__("; ".join(f"{path}: {text}" if path else text for path, text in problems))


def parse_config(raw: Any) -> RLConfig | MidtrainConfig:
    """The validated config. `type` defaults to `rl`. Raises ConfigError naming every problem."""
    if not isinstance(raw, dict):
        raise ConfigError([("", f"a run config is a mapping, not {type(raw).__name__}")])
    try:
        return _ADAPTER.validate_python({"type": "rl", **raw})
    except ValidationError as error:
        raise ConfigError([_problem(detail) for detail in error.errors()]) from None


def _problem(detail: ErrorDetails) -> tuple[str, str]:
    # The first element of a location is the union's tag (`rl`), which no user wrote.
    location = [str(part) for part in detail["loc"]]
    root: type[BaseModel] = MidtrainConfig if location[:1] == ["midtrain"] else RLConfig
    path, models, holders = _walk(
        root, location[1:] if location[:1] in (["rl"], ["midtrain"]) else location
    )
    shown = ".".join(path)
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "extra_forbidden":
        known = sorted({name for model in models for name in model.model_fields})
        near = process.extractOne(path[-1], known, score_cutoff=60)
        hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known)}"
        return shown, f"unknown key; {hint}"
    if detail["type"] in ("union_tag_invalid", "union_tag_not_found"):
        context = detail.get("ctx", {})
        tag, expected = str(context.get("tag", "")), str(context.get("expected_tags", ""))
        names = [name.strip(" '") for name in expected.split(",")]
        near = process.extractOne(tag, names, score_cutoff=60) if tag else None
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        key = str(context.get("discriminator", "'type'")).strip("'")
        if not tag:
            there = [name for model in holders if (name := _tag(model))]
            return shown, f"needs a {key}: one of {', '.join(there)}"
        return shown, f"{key} {tag!r} does not exist{hint}; there is {', '.join(names)}"
    if detail["type"] == "missing":
        return shown, "is required"
    given = detail.get("input")
    if isinstance(given, str | int | float | bool) and detail["type"] != "value_error":
        message += f" (got {given!r})"
    return shown, message


Models = list[type[BaseModel]]


def _walk(root: type[BaseModel], location: list[str]) -> tuple[list[str], Models, Models]:
    """The user's key path with union tags taken out, the models that hold its last key, and the
    models its value may be."""
    models: Models = [root]
    path: list[str] = []
    holders = models
    for part in location:
        fields = [model.model_fields[part] for model in models if part in model.model_fields]
        if fields:
            path.append(part)
            holders = models
            models = [m for field in fields for m in _models(field.annotation)]
            continue
        tagged = [model for model in models if _tag(model) == part]
        if tagged:
            models = tagged
            holders = tagged
            continue
        path.append(part)
        holders = models
    return path, holders, models


def _tag(model: type[BaseModel]) -> str | None:
    for name in ("type", "source"):
        field = model.model_fields.get(name)
        if field is not None and get_args(field.annotation):
            return str(get_args(field.annotation)[0])
    return None


def _models(annotation: Any) -> Models:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Annotated, Union, UnionType, list):
        return [model for inner in get_args(annotation) for model in _models(inner)]
    return []
