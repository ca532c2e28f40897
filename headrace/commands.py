"""Commands that are printed for a user to copy: they work in any terminal and in any folder."""

import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path


def program() -> str:
    """The `headrace` that runs: by its name if a shell finds it so, else by its path."""
    installed, on_path = Path(sys.executable).with_name("headrace"), shutil.which("headrace")
    if not installed.exists() or (on_path is not None and installed.samefile(on_path)):
        return "headrace"
    return str(installed)


def pasted(variables: Mapping[str, str], *words: str) -> str:
    """`headrace WORDS` with these variables in its environment, as a shell reads it."""
    assignments = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    return " ".join([*assignments, shlex.join([program(), *words])])


def exported(variables: Mapping[str, str]) -> list[str]:
    """Return the lines that set these variables in a shell."""
    return [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
