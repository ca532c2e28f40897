"""From raw values to a run config, with errors that say which key, why, and the way out."""

from typing import Any, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from headrace.config_keys import same_name
from headrace.nearest import did_you_mean
from headrace.other_systems.values import OTHER_VALUES, meant_by
from headrace.wording import quoted
from services.contracts.config.parsing.type_tags import (
    Models,
    fields_of,
    key_paths,
    models_of,
    tag_name,
    tags_of,
    with_default_tags,
)
from services.contracts.config.parsing.unknown_key_hints import Problem, unknown_key
from services.contracts.config.run import RLConfig, RunConfig
from services.contracts.config.sft import SFTConfig, with_default_optimizer
from services.contracts.wrong_values import wrong_value

MOST = 50
"""Problems that are explained: each takes half a millisecond, and a body has room for millions."""
WAYS_OUT = {
    "model.path": ": a folder in Hugging Face layout, a hub name (org/name), or run:RUN (on the "
    "command line --set model.path=…, of preview --model …)",
    "data.dataset": ": the name of a dataset that `headrace datasets` lists (on the command line "
    "--set data.dataset=…)",
    "rewards": ": a list of verifiers, like [{verifier: math}]. A recipe brings one: `headrace "
    "recipes` and GET /v1/recipes list the recipes",
}
"""How to give a key that each run needs, by its path."""
MAIN_KEYS = ("dataset", "datasets", "path", "verifier", "type")
"""Keys of a section that its value is meant for if it is a text: `evaluation=heldout`."""
_ADAPTER: TypeAdapter[RLConfig | SFTConfig] = TypeAdapter(RunConfig)


class ConfigError(ValueError):
    """A run config that cannot be used. `problems` has (key path, sentence) pairs; `more` further
    ones are not explained."""

    def __init__(self, problems: list[Problem], more: int = 0) -> None:
        self.problems = problems
        self.more = more
        sentences = [f"{path}: {text}" if path else text for path, text in problems]
        super().__init__(
            "; ".join([*sentences, *([f"and {more:,} more problems"] if more else [])])
        )


def parse_config(raw: Any) -> RLConfig | SFTConfig:
    """The validated config. `type` defaults to `rl`, and a section's to that of its default.
    Raises ConfigError naming every problem."""
    if not isinstance(raw, dict):
        raise ConfigError([("", f"a run config is a mapping, not {type(raw).__name__}")])
    root: type[RLConfig | SFTConfig] = RLConfig
    if raw.get("type") == "sft":
        root, raw = SFTConfig, with_default_optimizer(raw)
    # Empty sections, so that an error names the keys that are missing in them.
    whole = {"type": "rl", "model": {}, "data": {}, **raw}
    try:
        return _ADAPTER.validate_python(with_default_tags(root, whole))
    except ValidationError as error:
        details = error.errors(include_url=False)
        problems = [p for detail in details[:MOST] for p in _problems(detail)]
        raise ConfigError(problems, max(0, len(details) - MOST)) from None


def place_in_config(name: str) -> str | None:
    """Return the place in a request's `config` of the key `name`, which stands beside it; None for
    a name that is no key of a run's config."""
    keys = [key for root in (RLConfig, SFTConfig) for key in same_name(key_paths(root), [name])]
    return f"config.{keys[0]}" if keys else None


def _problems(detail: ErrorDetails) -> list[Problem]:
    # The first element of a location is the union's tag (`rl`), which no user wrote.
    location = [str(part) for part in detail["loc"]]
    root: type[BaseModel] = SFTConfig if location[:1] == ["sft"] else RLConfig
    location = location[1:] if location[:1] in (["rl"], ["sft"]) else location
    path, models, others = _walk(root, location)
    if detail["type"] == "extra_forbidden":
        owners = [tag for model in others if path[-1] in fields_of(model) for tag in tags_of(model)]
        if owners:
            key = f"{'.'.join(path[:-1])}.{tag_name(others[0])}"
            message = f"is a key of {', '.join(owners)}, and {key} is {location[-2]}: set that, too"
            return [(".".join(path), f"{message}, or leave this out")]
        other = RLConfig if root is SFTConfig else SFTConfig
        return unknown_key(root, other, path, models, detail["input"])
    return [_problem(detail, ".".join(path), models, _may_be_null(root, path[:-1]))]


def _may_be_null(root: type[BaseModel], path: list[str]) -> bool:
    """Whether the section at `path` may be left out by setting it to null."""
    models: Models = [root]
    fields: list[FieldInfo] = []
    for part in path:
        fields = [fields_of(model)[part] for model in models if part in fields_of(model)]
        models = [model for field in fields for model in models_of(field.annotation)]
    return any(type(None) in get_args(field.annotation) for field in fields)


def _problem(detail: ErrorDetails, shown: str, models: Models, may_be_null: bool) -> Problem:
    """`may_be_null`: the section that the key is in."""
    if detail["type"] in ("union_tag_invalid", "union_tag_not_found"):
        context = detail.get("ctx", {})
        tag, expected = str(context.get("tag", "")), str(context.get("expected_tags", ""))
        names = [name.strip(" '") for name in expected.split(",")]
        key = str(context.get("discriminator", "'type'")).strip("'")
        if not tag:
            there = [name for model in models for name in tags_of(model)]
            return shown, f"needs a {key}: one of {', '.join(there)}"
        meaning = meant_by(OTHER_VALUES.get(f"{shown}.{key}", {}), tag)
        hint = f" ({meaning})" if meaning else did_you_mean(tag, names)
        return shown, f"{key} {tag!r} does not exist{hint}; there is {', '.join(names)}"
    is_missing = detail["type"] == "missing"
    if detail["type"] == "value_error" and (key := wrong_value(detail)).endswith(" is required"):
        # A key that is required unless another key has a certain value.
        is_missing, shown = True, f"{shown}.{key.removesuffix(' is required')}"
    if is_missing:
        section = shown.rpartition(".")[0]
        way_out = f": set it, or set {section} to null" if may_be_null else ""
        way_out = WAYS_OUT.get(shown, way_out)
        return shown, f"is required{way_out}"
    given = detail.get("input")
    if detail["type"] in ("model_type", "model_attributes_type"):
        keys = sorted({name for model in models for name in fields_of(model)})
        meant = next((key for key in MAIN_KEYS if key in keys), None)
        hint = f" (did you mean {shown}.{meant}?)" if meant and isinstance(given, str) else ""
        return shown, f"is a section, not {quoted(given)}{hint}: its keys are {', '.join(keys)}"
    if detail["type"] in ("list_type", "tuple_type") and isinstance(given, dict):
        way_out = f"give all of it ([…]), or change a place of the one that is there ({shown}.0)"
        return shown, f"is a list, not a mapping of {', '.join(map(str, given))}: {way_out}"
    if detail["type"] == "list_type" and isinstance(given, str):
        keys = sorted({name for model in models for name in fields_of(model)})
        meant = next((key for key in MAIN_KEYS if key in keys), None)
        hint = f" (did you mean {shown}.0.{meant}?)" if meant else ""
        return shown, wrong_value(detail) + hint
    meaning = meant_by(OTHER_VALUES.get(shown, {}), given)
    is_explained = meaning and detail["type"] != "value_error"
    return shown, wrong_value(detail) + (f"; {meaning}" if is_explained else "")


def _walk(root: type[BaseModel], location: list[str]) -> tuple[list[str], Models, Models]:
    """The user's key path with union tags taken out, and the models its value may be; for a key
    that is not known, those that it was looked for in, and the others of their union."""
    models: Models = [root]
    others: Models = []
    path: list[str] = []
    # A key may have the name of a kind: after the tag of its section, that name is a key.
    chosen = True
    for part in location:
        fields = [fields_of(model)[part] for model in models if part in fields_of(model)]
        if fields:
            path.append(part)
            models, others = [m for field in fields for m in models_of(field.annotation)], []
            chosen = False
        elif not chosen and (tagged := [model for model in models if part in tags_of(model)]):
            models, others = tagged, [model for model in models if model not in tagged]
            chosen = True
        else:
            path.append(part)
    return path, models, others
