"""How a run's config differs from its recipe. Pure."""

from typing import Any, NamedTuple

from headrace import known_recipes
from headrace.config_keys import POLICY, value_at, with_value
from headrace.merging import NoSuchPlace, merged
from headrace.recipe import UnknownRecipe, find_in
from headrace.run_schema import filled, root

NAMED = (POLICY, "data.dataset", "data.prompts_per_epoch")
"""Keys that each run gives, so that they say nothing about the recipe."""


class Change(NamedTuple):
    """A key with another value than the recipe's."""

    key: str
    recipe: Any
    run: Any


def changes(config: dict[str, Any], recipe: str | None) -> list[Change] | None:
    """Return the keys of a run's `config` that differ from its recipe, or from the defaults if it
    has no recipe. Return None if that cannot be told: there is no such recipe here."""
    usual: dict[str, Any] = {"type": config["type"]}
    for key in NAMED:
        if (value := value_at(config, key)) is not None:
            usual = with_value(usual, key, value)
    if value_at(config, POLICY) is None:
        usual["model"] = config["model"]
    try:
        base = find_in(known_recipes.recipes(), recipe).config if recipe else {}
        base = base or {"rewards": config.get("rewards")}
        expected = merged({k: v for k, v in base.items() if v is not None}, usual)
    except (UnknownRecipe, NoSuchPlace):
        return None
    before = _leaves(filled(root("sft" if config["type"] == "sft" else "rl"), expected))
    after = _leaves(config)
    return [
        Change(key, before.get(key), after.get(key))
        for key in dict.fromkeys([*before, *after])
        if before.get(key) != after.get(key)
    ]


def _leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Return the values of a document by their key paths. A list is one value."""
    if not isinstance(value, dict) or not value:
        return {path: value}
    return {
        key: leaf
        for name, inner in value.items()
        for key, leaf in _leaves(inner, f"{path}.{name}".lstrip(".")).items()
    }
