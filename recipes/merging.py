"""Overrides over a recipe: mappings merge key by key, everything else is replaced.

Two exceptions. A section that is one of several kinds (the optimizer, a loss, a correction, …) is
replaced as a whole when the override chooses another kind: the keys of AdamW mean nothing to
Muon, and a learning rate that fits one would ruin the other. And a mapping whose keys are numbers
changes those places of a list: `rewards: {0: {weight: 2}}`, or `rewards.0.weight=2`.
"""

from typing import TYPE_CHECKING, Any, get_args

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from services.contracts.config.parsing.type_tags import Models


def merged(base: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """`overrides` over `base`; neither is changed. A config of another `type` replaces all.

    Raises ConfigError for a place that a list of `base` does not have.
    """
    # Here, since the config's models take 0.3 s to build, and most commands merge nothing.
    from services.contracts.config import RLConfig, SFTConfig

    kind = base.get("type", "rl")
    if overrides.get("type", kind) != kind:
        return dict(overrides)
    return _merged(base, overrides, [SFTConfig if kind == "sft" else RLConfig], "")


def place_in(values: list[Any], key: Any, path: str) -> int:
    """Return the index that `key` names in the list at `path`. Raises ConfigError if the list has
    no such index."""
    from services.contracts.config import ConfigError

    place = str(key)
    if place.isdecimal() and len(place) < 10 and int(place) < len(values):
        return int(place)
    there = f"its places are 0 to {len(values) - 1}" if values else "it is empty"
    problem = f"{path} is a list without a place {place[:80]!r}: {there}"
    raise ConfigError([(f"{path}.{place[:80]}", problem)])


def _merged(
    base: dict[str, Any], overrides: dict[str, Any], models: "Models", path: str
) -> dict[str, Any]:
    from services.contracts.config.parsing.type_tags import models_of

    result = dict(base)
    for key, value in overrides.items():
        fields = [model.model_fields[key] for model in models if key in model.model_fields]
        kinds = [kind for field in fields for kind in models_of(field.annotation)]
        result[key] = _laid(base.get(key), value, fields, kinds, f"{path}.{key}".lstrip("."))
    return result


def _laid(there: Any, value: Any, fields: "list[FieldInfo]", kinds: "Models", path: str) -> Any:
    """Return `value` merged over `there`, the present value at `path`. A section that gets another
    `type` is replaced, not merged. `fields`: the fields that may hold it; `kinds`: the models that
    it may be."""
    if isinstance(there, list) and isinstance(value, dict) and any(map(_is_number, value)):
        places = list(there)
        for key, inner in value.items():
            place = place_in(there, key, path)
            places[place] = _laid(places[place], inner, [], kinds, f"{path}.{key}")
        return places
    if not (isinstance(there, dict) and isinstance(value, dict)):
        return value
    tag = next((f.discriminator for f in fields if isinstance(f.discriminator, str)), None)
    if tag is not None:
        old = _of_kind(kinds, tag, there.get(tag, _default_tag(fields, tag)))
        new = _of_kind(kinds, tag, value[tag]) if tag in value else old
        if old != new:
            return value
        kinds = new
    return _merged(there, value, kinds, path)


def _is_number(key: Any) -> bool:
    return str(key).removeprefix("-").isdecimal()


def _of_kind(models: "Models", tag: str, value: Any) -> "Models":
    return [model for model in models if value in get_args(model.model_fields[tag].annotation)]


def _default_tag(fields: "list[FieldInfo]", tag: str) -> Any:
    defaults = (getattr(field.default, tag, None) for field in fields)
    return next((default for default in defaults if default is not None), None)
