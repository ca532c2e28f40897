"""Commands that are printed for a user to copy: they work in any terminal and in any folder."""

import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path


def program() -> str:
    """The `headrace` that runs: by its name if a shell finds it so, else by its path."""
    own, found = Path(sys.executable).with_name("headrace"), shutil.which("headrace")
    if not own.exists() or (found is not None and own.samefile(found)):
        return "headrace"
    return str(own)


def pasted(variables: Mapping[str, str], *words: str) -> str:
    """`headrace WORDS` with these variables in its environment, as a shell reads it."""
    assignments = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    return " ".join([*assignments, shlex.join([program(), *words])])
