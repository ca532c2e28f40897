"""Names that a program of a function test may use without importing them.

The judges of APPS, TACO and LiveCodeBench import them before the program, as LeetCode does.
"""

import builtins
import importlib
import re
from contextlib import suppress
from typing import Any

# If two modules have a name, the later module wins: `Counter` is collections', not typing's.
# Built-in functions keep their names, and modules theirs (`copy`, `random`).
_STARRED = (
    "sys", "typing", "string", "re", "datetime", "random", "statistics", "operator", "io", "json",
    "copy", "fractions", "decimal", "heapq", "bisect", "math", "itertools", "functools",
    "collections",
)  # fmt: skip
RECURSION = 50_000
"""Depth of calls that LiveCodeBench's judge permits."""


def builtins_with_library(source: str) -> dict[str, Any]:
    """Return `__builtins__` for the program `source`. The program's own names win over these
    names."""
    names: dict[str, Any] = {}
    for module in map(importlib.import_module, _STARRED):
        listed = getattr(module, "__all__", None) or [n for n in vars(module) if n[0] != "_"]
        names |= {name: getattr(module, name) for name in listed}
    # `datetime.time` keeps its name.
    names |= {name: importlib.import_module(name) for name in _STARRED}
    if re.search(r"\bnp\.", source):
        with suppress(ImportError):
            names["np"] = importlib.import_module("numpy")
    return names | vars(builtins)
