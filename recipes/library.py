"""Finding and reading recipe files."""

from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import yaml
from rapidfuzz import fuzz, process


class UnknownRecipe(LookupError):
    """No recipe of that name, or a file that is not one; the message names what there is."""


@dataclass(frozen=True)
class Recipe:
    """One recipe: its name, when to use it, its text and the config in it."""

    name: str
    when: str
    text: str
    config: dict[str, Any]


def list_recipes() -> list[Recipe]:
    """All recipes that come with Headrace, by name."""
    folder = files("recipes")
    names = (entry.name for entry in folder.iterdir() if entry.name.endswith(".yaml"))
    return [find_recipe(name.removesuffix(".yaml")) for name in sorted(names)]


def find_recipe(name: str) -> Recipe:
    """The recipe `name`. Raises UnknownRecipe naming the nearest one."""
    folder = files("recipes")
    names = sorted(
        f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml")
    )
    if name not in names:
        near = process.extractOne(name, names, scorer=fuzz.ratio, score_cutoff=60)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise UnknownRecipe(f"there is no recipe {name!r}{hint}; there is: {', '.join(names)}")
    return read_recipe(name, (folder / f"{name}.yaml").read_text())


def read_recipe(name: str, text: str) -> Recipe:
    """A recipe from its text. Raises UnknownRecipe where it is not a YAML mapping."""
    try:
        config = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        reason = getattr(error, "problem", None) or "cannot be read"
        raise UnknownRecipe(f"{name} is not YAML: {reason}{where}") from None
    if not isinstance(config, dict):
        raise UnknownRecipe(f"{name} is not a run config: a recipe is a mapping of config keys")
    return Recipe(name, _when(text), text, config)


def _when(text: str) -> str:
    """The `# when:` line, with the comment lines that continue it."""
    said: list[str] = []
    for line in text.splitlines():
        if not said and line.startswith("# when:"):
            said.append(line.removeprefix("# when:").strip())
        elif said and line.startswith("#   "):
            said.append(line.removeprefix("#").strip())
        elif said:
            break
    return " ".join(said)
