"""Names that a program of a function test may use without importing them.

The judges of APPS, TACO and LiveCodeBench import them before the program, as LeetCode does.
LeetCode also has `sortedcontainers`, `ListNode` and `TreeNode`.
"""

import builtins
import importlib
import re
import sys
from contextlib import suppress
from typing import Any

from reward.sandbox.leetcode_nodes import NODES

# If two modules have a name, the later module wins: `Counter` is collections', not typing's.
# Built-in functions keep their names, and modules theirs (`copy`, `random`).
_STARRED = (
    "sys", "typing", "string", "re", "datetime", "random", "statistics", "operator", "io", "json",
    "copy", "fractions", "decimal", "heapq", "bisect", "math", "itertools", "functools",
    "collections",
)  # fmt: skip
_OWNER = re.compile(r"(?<![\w.])([^\W\d]\w*)\s*\.")
RECURSION = 50_000
"""Depth of calls that LiveCodeBench's judge permits."""


def builtins_with_library(source: str) -> dict[str, Any]:
    """Return `__builtins__` for the program `source`. The program's own names win over these
    names."""
    names: dict[str, Any] = {}
    for module in map(importlib.import_module, _STARRED):
        listed = getattr(module, "__all__", None) or [n for n in vars(module) if n[0] != "_"]
        names |= {name: getattr(module, name) for name in listed}
    # A module wins over a function or class of its name if the program reads its attributes.
    owners = {"np", *_STARRED, *sys.stdlib_module_names} & set(_OWNER.findall(source))
    for name in sorted(owners.union(_STARRED)):
        with suppress(ImportError):
            names[name] = importlib.import_module("numpy" if name == "np" else name)
    if "Sorted" in source:
        with suppress(ImportError):
            sorted_containers = importlib.import_module("sortedcontainers")
            names |= {name: getattr(sorted_containers, name) for name in sorted_containers.__all__}
    return names | NODES | vars(builtins)
