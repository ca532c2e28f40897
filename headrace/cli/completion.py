"""Words that a shell completes: runs, datasets, recipes, keys of the config.

A completion answers within WAIT seconds or says nothing: a gateway that is away, a missing key and
any other trouble complete to nothing, without a word.
"""

import os
from contextlib import suppress
from typing import Any

WAIT = 1.0
"""Seconds that the gateway has."""
MOST = 100
"""The newest runs that a completion looks at."""


def runs(incomplete: str) -> list[tuple[str, str]]:
    """Return ids and names of runs that begin so, with their states."""
    words: dict[str, str] = {}
    for record in _answer(f"/v1/runs?limit={MOST}", "runs"):
        words.setdefault(record["name"], f"{record['kind']}, {record['state']}")
        words[record["id"]] = f"{record['name']}, {record['state']}"
    return [(word, help) for word, help in words.items() if word.startswith(incomplete)]


def datasets(incomplete: str) -> list[tuple[str, str]]:
    """Return the names of datasets that begin so, with their rows."""
    records = _answer("/v1/datasets", "datasets")
    words = {record["name"]: f"{record['rows']} rows" for record in records}
    return [(word, help) for word, help in words.items() if word.startswith(incomplete)]


def verifiers(incomplete: str) -> list[str]:
    """Return the names of verifiers that begin so."""
    names = [record["name"] for record in _answer("/v1/verifiers", "verifiers")]
    return [name for name in names if name.startswith(incomplete)]


def recipes(incomplete: str) -> list[str]:
    """Return the recipes, chains and YAML files that begin so."""
    from headrace import known_recipes

    known = [recipe.name for recipe in (*known_recipes.recipes(), *known_recipes.chains())]
    with suppress(OSError):
        known += [name for name in os.listdir() if name.endswith((".yaml", ".yml"))]
    return sorted({name for name in known if name.startswith(incomplete)})


def config_keys(incomplete: str) -> list[str]:
    """Return the keys of the run config that begin so."""
    from headrace.run_schema import ROOTS, key_paths

    paths = (path for kind in ROOTS for path in key_paths(kind))
    return sorted({path for path in paths if path.startswith(incomplete)})


def settings(incomplete: str) -> list[str]:
    """Return the arguments of `--set` that begin so: keys, and names behind some of them."""
    key, equals, value = incomplete.partition("=")
    if not equals:
        return [f"{path}=" for path in config_keys(key)]
    if key.endswith("dataset"):
        return [f"{key}={name}" for name, _ in datasets(value)]
    return []


def _answer(path: str, items: str) -> list[Any]:
    """Return what GET `path` lists under `items`; nothing on any failure."""
    # A traceback or a sentence would appear in the middle of the user's line.
    with suppress(Exception):
        from headrace.cli.client import Gateway

        return list(Gateway(answer=WAIT).get(path)[items])
    return []
