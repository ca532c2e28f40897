"""Words of configs that a shell completes: recipes, keys, settings."""

import os
from contextlib import suppress
from importlib.resources import files

from headrace.cli.completion import datasets


def recipes(incomplete: str) -> list[str]:
    """Return the recipes, chains and YAML files that begin so."""
    # The names alone: reading the recipes would bring a YAML parser.
    folders = (files("recipes"), files("recipes") / "chains")
    names = [file.name for folder in folders for file in folder.iterdir()]
    known = [name.removesuffix(".yaml") for name in names if name.endswith(".yaml")]
    with suppress(OSError):
        known += [name for name in os.listdir() if name.endswith((".yaml", ".yml"))]
    return sorted({name for name in known if name.startswith(incomplete)})


def config_keys(incomplete: str) -> list[str]:
    """Return the keys of the run config that begin so."""
    from services.contracts.config import RLConfig, SFTConfig
    from services.contracts.config.parsing.type_tags import key_paths

    paths = (path for model in (RLConfig, SFTConfig) for path in key_paths(model))
    return sorted({path for path in paths if path.startswith(incomplete)})


def settings(incomplete: str) -> list[str]:
    """Return the arguments of `--set` that begin so: keys, and names behind some of them."""
    key, equals, value = incomplete.partition("=")
    if not equals:
        return [f"{path}=" for path in config_keys(key)]
    if key.endswith("dataset"):
        return [f"{key}={name}" for name, _ in datasets(value)]
    return []
