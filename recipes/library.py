"""Finding and reading recipe files."""

from importlib.resources import files
from importlib.resources.abc import Traversable

from headrace.recipe import Recipe, find_in


def list_recipes() -> list[Recipe]:
    """Return all recipes that come with Headrace, by name."""
    return _read_all(files("recipes"))


def find_recipe(name: str) -> Recipe:
    """Return the recipe `name`. Raises UnknownRecipe naming the nearest one."""
    return find_in(list_recipes(), name)


def list_chains() -> list[Recipe]:
    """Return all chains of runs that come with Headrace, by name: their config has `steps`."""
    return _read_all(files("recipes") / "chains")


def find_chain(name: str) -> Recipe | None:
    """Return the chain `name`, or None if it is unknown."""
    return next((chain for chain in list_chains() if chain.name == name), None)


def _read_all(folder: Traversable) -> list[Recipe]:
    texts = {f.name: f.read_text() for f in folder.iterdir() if f.name.endswith(".yaml")}
    return [Recipe(name.removesuffix(".yaml"), text) for name, text in sorted(texts.items())]
