"""Recipes and chains that come with this version of Headrace: `recipes.json`, which `make client`
writes. A gateway of another version may have others."""

import functools
import json
from importlib.resources import files

from headrace.recipe import Recipe


def recipes() -> list[Recipe]:
    """Return the run configs, by name."""
    return [Recipe(name, text) for name, text in _texts()["recipes"].items()]


def chains() -> list[Recipe]:
    """Return the chains of runs, by name: their config has `steps`."""
    return [Recipe(name, text) for name, text in _texts()["chains"].items()]


@functools.cache
def _texts() -> dict[str, dict[str, str]]:
    texts: dict[str, dict[str, str]] = json.loads(
        (files("headrace") / "recipes.json").read_text("utf-8")
    )
    return texts
