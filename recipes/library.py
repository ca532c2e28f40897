"""Finding and reading recipe files."""

import re
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

import yaml

from headrace.documents import load_yaml
from headrace.nearest import did_you_mean


class UnknownRecipe(LookupError):
    """No recipe of that name, or a file that is not one; the message names what there is."""


@dataclass(frozen=True)
class Recipe:
    """One recipe: its name and its text."""

    name: str
    text: str

    @property
    def when(self) -> str:
        """When to use it: the `# when:` line, with the comment lines that continue it."""
        line = re.search(r"^# when:(.*(?:\n#   .*)*)", self.text, re.MULTILINE)
        return " ".join(line[1].replace("\n#", " ").split()) if line else ""

    @cached_property
    def config(self) -> dict[str, Any]:
        """The config in it. Raises UnknownRecipe if the text is not a YAML mapping."""
        try:
            config = load_yaml(self.text)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
            reason = getattr(error, "problem", None) or "cannot be read"
            raise UnknownRecipe(f"{self.name} is not YAML: {reason}{where}") from None
        if not isinstance(config, dict):
            raise UnknownRecipe(
                f"{self.name} is not a run config: a recipe is a mapping of config keys"
            )
        return config

    def as_json(self) -> dict[str, Any]:
        """Return the recipe as JSON, for programs."""
        return {"name": self.name, "when": self.when, "text": self.text, "config": self.config}


def list_recipes() -> list[Recipe]:
    """Return all recipes that come with Headrace, by name."""
    return _read_all(files("recipes"))


def find_recipe(name: str) -> Recipe:
    """Return the recipe `name`. Raises UnknownRecipe naming the nearest one."""
    recipes = {recipe.name: recipe for recipe in list_recipes()}
    if name not in recipes:
        hint = did_you_mean(name, recipes)
        raise UnknownRecipe(f"there is no recipe {name!r}{hint}; there is: {', '.join(recipes)}")
    return recipes[name]


def list_chains() -> list[Recipe]:
    """Return all chains of runs that come with Headrace, by name: their config has `steps`."""
    return _read_all(files("recipes") / "chains")


def find_chain(name: str) -> Recipe | None:
    """Return the chain `name`, or None if it is unknown."""
    return next((chain for chain in list_chains() if chain.name == name), None)


def _read_all(folder: Traversable) -> list[Recipe]:
    texts = {f.name: f.read_text() for f in folder.iterdir() if f.name.endswith(".yaml")}
    return [Recipe(name.removesuffix(".yaml"), text) for name, text in sorted(texts.items())]


def read_recipe(name: str, text: str) -> Recipe:
    """Return a recipe with this text. Raises UnknownRecipe if it is not a YAML mapping."""
    recipe = Recipe(name, text)
    _ = recipe.config
    return recipe
