"""A recipe: a commented run config, or a chain of them, in YAML."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

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
        # Lists of recipes are read without YAML's parser.
        import yaml

        from headrace.documents import load_yaml

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


def read_recipe(name: str, text: str) -> Recipe:
    """Return a recipe with this text. Raises UnknownRecipe if it is not a YAML mapping."""
    recipe = Recipe(name, text)
    _ = recipe.config
    return recipe


def find_in(recipes: Sequence[Recipe], name: str) -> Recipe:
    """Return the recipe `name`. Raises UnknownRecipe naming the nearest one."""
    named = {recipe.name: recipe for recipe in recipes}
    if name not in named:
        hint = did_you_mean(name, named)
        raise UnknownRecipe(f"there is no recipe {name!r}{hint}; there is: {', '.join(named)}")
    return named[name]
