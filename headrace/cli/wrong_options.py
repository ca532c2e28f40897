"""The way out for an option that a command does not have: `--set` for a config's key."""

import shlex
from typing import Any

from headrace.cli.command import CliCommand
from headrace.cli.command_group import unknown_option
from headrace.config_keys import same_name
from headrace.other_systems.table import row_of
from headrace.run_schema import ROOTS, key_paths

USUAL = {"model": "model.path", "dataset": "data.dataset", "data": "data.dataset"}
"""The keys that a section's name, or a key of several sections, stands for."""


class ConfigCommand(CliCommand):
    """A command whose `--set` overrides keys of a config."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. Answer a key that is written as an option with its `--set`."""
        before = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if (option := unknown_option(error)) and (hint := set_form(option, before)):
                ctx.fail(f"No such option: {option}. {hint}")
            raise


def set_form(option: str, args: list[str]) -> str:
    """Return a sentence with the `--set` for an option of `args` that is called like a config's
    key, here or in another system. Return an empty text for any other option."""
    name = option.lstrip("-").replace("-", "_")
    row = row_of([name])
    value = _value(option, args)
    # Another system's value may need a conversion.
    converted = row is not None and bool(row.note or row.values) and name not in USUAL
    setting = "VALUE" if converted else value
    ways: list[str] = []
    for known in map(key_paths, ROOTS):
        if name in USUAL:
            keys = [USUAL[name]]
        elif row is not None:
            keys = [key for key in row.keys.split() if key in known]
        else:
            keys = [name] if name in known else same_name(known, [name])
        shown = (f"`--set {shlex.quote(f'{key}={setting}')}`" for key in keys)
        ways.append((" and " if row else " or ").join(shown))
    note = row.note.format(value=value) if row and name not in USUAL else ""
    if forms := " or ".join(dict.fromkeys(filter(None, ways))):
        return f"A key of the config goes into --set: {forms}. {note}".rstrip()
    return note


def _value(option: str, args: list[str]) -> str:
    """Return the value that stands behind `option`, or VALUE."""
    for word, after in zip(args, [*args[1:], "-"], strict=True):
        name, equals, value = word.partition("=")
        if name == option:
            return value if equals else "VALUE" if after.startswith("-") else after
    return "VALUE"
