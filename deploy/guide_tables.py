"""The tables of the guide that the code knows: `python -m deploy.guide_tables` writes them.

A page of docs/guide/ says between two comments which table stands there:

    <!-- names SYSTEM: KEY KEY … -->      keys of another system, and those that stand for them here
    <!-- recipes: NAME NAME … -->         when to use which recipe
    <!-- end -->

A unit test compares the pages with what this makes.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from headrace.config_keys import same_name
from headrace.other_systems.table import row_of
from recipes import list_recipes
from services.contracts.config import RLConfig
from services.contracts.config.parsing.type_tags import key_paths

PAGES = Path(__file__).resolve().parents[1] / "docs" / "guide"
TABLE = re.compile(r"(<!-- (names [\w-]+|recipes):\s(.*?) -->\n).*?(<!-- end -->)", re.DOTALL)


def with_tables(page: str) -> str:
    """Return the text of a page with each of its tables made anew."""

    def table(match: re.Match[str]) -> str:
        kind, _, system = match[2].partition(" ")
        made = (
            recipes_table(match[3].split())
            if kind == "recipes"
            else names_table(system, match[3].split())
        )
        return f"{match[1]}\n{made}\n\n{match[4]}"

    return TABLE.sub(table, page)


def recipes_table(names: list[str]) -> str:
    """Return the rows of some recipes: when to use which."""
    when = {recipe.name: recipe.when for recipe in list_recipes()}
    return "\n".join(
        ["| Recipe | When |", "| --- | --- |", *(f"| `{name}` | {when[name]} |" for name in names)]
    )


def names_table(system: str, names: list[str]) -> str:
    """Return the rows of another system's keys, each with its counterparts here."""
    head = [f"| {system} | Headrace | |", "| --- | --- | --- |"]
    return "\n".join([*head, *(_row(name) for name in names)])


def counterparts(name: str) -> tuple[list[str], str]:
    """Return the keys here that stand for another system's key, and what to know of its value."""
    path = name.split(".")
    row = row_of(path)
    if row is None:
        return same_name(key_paths(RLConfig), path), ""
    known = set(key_paths(RLConfig))
    values = [f"`{value}`: {_settings(settings)}" for value, settings in row.values.items()]
    note = row.note.format(value="its value")
    return [key for key in row.keys.split() if key in known], "; ".join(
        [note, *values] if note else values
    )


def _row(name: str) -> str:
    keys, note = counterparts(name)
    if not keys and not note:
        raise LookupError(f"{name}: the code knows no counterpart")
    here = ", ".join(f"`{key}`" for key in keys) or "—"
    return f"| `{name}` | {here} | {note[:1].upper() + note[1:]} |"


def _settings(settings: Any) -> str:
    if settings is None:
        return "nothing here"
    written = [f"`{key}: {_yaml(value)}`" for key, value in settings.items() if key]
    return ", ".join([*written, *([settings[""]] if "" in settings else [])])


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True).partition("\n")[0]


if __name__ == "__main__":
    for file in sorted(PAGES.glob("*.md")):
        file.write_text(with_tables(file.read_text()))
