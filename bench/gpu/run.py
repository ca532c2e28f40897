"""`python -m bench.gpu [STAGE …]`: all that has to be measured when a GPU is at hand, in one run.

A stage that fails is noted, and the next one goes on. `tests`, `kernels` and `learner` need torch,
transformers and pytest alone; `loop` needs an installation of Headrace for GPUs.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.learner.run import WORKS, gpu_memory, parsed, part
from bench.runner import BenchFailed, BenchPart, BenchResults, Figures

ROOT = Path(__file__).parents[2]
PYTEST = (
    *("-c", "/dev/null", "--rootdir=.", "--confcutdir=tests/gpu", "-p", "no:cacheprovider"),
    *("-q", "-W", "ignore", "--tb=short"),
)
"""Leaves the project's own settings out, which need its other dependencies."""
TAIL = 15
"""Lines of a failed command that are shown."""


def tested(files: Sequence[str]) -> Figures:
    """Run tests of a GPU. Return how many passed. Raises BenchFailed if one fails or none ran."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *files, *PYTEST],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (\w+)", lines[-1] if lines else "")}
    if done.returncode or not counts.get("passed"):
        raise BenchFailed(
            "\n".join(["no test passed" if not done.returncode else "", *lines[-TAIL:]])
        )
    return {"passed": counts["passed"], "skipped": counts.get("skipped", 0)}


def test_parts(options: argparse.Namespace) -> list[BenchPart]:
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests/gpu").glob("test_*.py"))
    sides = {Path(file).stem: partial(tested, [file]) for file in files}
    return [BenchPart("tests", sides, sides_as_rows=True)]


def kernel_parts(options: argparse.Namespace) -> list[BenchPart]:
    from bench.gpu.kernels import parts

    return parts()


def learner_parts(options: argparse.Namespace) -> list[BenchPart]:
    """Return the learner against plain transformers, uncompiled and compiled."""
    memory, parts = gpu_memory(), []
    for compiled in ("off", "auto"):
        chosen = parsed([f"--compile={compiled}"], memory)
        for work in WORKS:
            made = part(work, chosen)
            parts.append(
                BenchPart(f"{made.name}, compile {compiled}", made.sides, 1, made.ratio, made.agree)
            )
    return parts


def loop_parts(options: argparse.Namespace) -> list[BenchPart]:
    from bench.gpu.loop import parts

    return parts(options.data, options.steps)


STAGES: dict[str, Callable[[Any], list[BenchPart]]] = {
    "tests": test_parts,
    "kernels": kernel_parts,
    "learner": learner_parts,
    "loop": loop_parts,
}


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("stages", nargs="*", help=f"of {', '.join(STAGES)} (all)")
    parser.add_argument("--steps", type=int, default=6, help="training steps of a loop (6)")
    parser.add_argument("--data", type=Path, help="keep logs, metrics and weights of loops there")
    options = parser.parse_args(given)
    if unknown := [stage for stage in options.stages if stage not in STAGES]:
        parser.error(f"no stage {unknown[0]}: choose of {', '.join(STAGES)}")
    return options


def main() -> int:
    options = arguments()
    results = BenchResults("gpu", {"stages": options.stages, "steps": options.steps})
    for stage in options.stages or STAGES:
        with results.noting():
            for made in STAGES[stage](options):
                results.measure(made)
    return results.report()
