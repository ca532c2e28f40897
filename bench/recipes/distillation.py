"""`python -m bench.recipes.distillation`: how many steps the demo's student needs to reach its
teacher, by on-policy distillation and by reinforcement learning from the same start.

Every process for real, as `headrace up` starts them. The start is a run of `demo_sft`, the teacher
what `demo_grpo` makes of it. Runs that are there already are not made again: stop whenever you
like, and start again. docs/benchmarks.md has the figures.
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bench.installation import Installation, exit_code
from bench.recipes.run import cancel_what_was_interrupted
from services.settings import Settings

TEACHER_STEPS = 100
SEEDS = (1, 2)
CLOSE, HALFWAY = 0.02, 0.9
"""A student has reached its teacher where its accuracy is no further below; and an accuracy on the
way there."""
TAUGHT = {"advantage": {"type": "reverse_kl"}}
STUDENTS: Mapping[str, dict[str, Any]] = {
    "grpo": {"training": {"max_steps": 100}, "evaluation": {"every": 4}},
    "distillation": {
        "algorithm": TAUGHT,
        "training": {"max_steps": 40},
        "evaluation": {"every": 2},
    },
    "grpo-small": {
        "algorithm": {"prompts_per_step": 4},
        "training": {"max_steps": 100},
        "evaluation": {"every": 4},
    },
    "distillation-small": {
        "algorithm": {**TAUGHT, "samples_per_prompt": 1},
        "training": {"max_steps": 100},
        "evaluation": {"every": 4},
    },
}
"""What is laid over `demo_grpo`, whose steps have 32 prompts with 8 answers each. The small ones
have 32 answers: 8 of 4 prompts, which GRPO has to compare, or one of each of 32."""


class Found(NamedTuple):
    """Of one student."""

    name: str
    seed: int
    accuracies: dict[int, float]
    """By step."""
    seconds: float
    """Of its steps."""

    def reached(self, accuracy: float) -> int | None:
        """The first evaluated step of that `accuracy`, if there is one."""
        return next((step for step, one in self.accuracies.items() if one >= accuracy), None)


def run_of(
    installation: Installation, recipe: str, name: str, config: dict[str, Any]
) -> dict[str, Any]:
    """The record of the finished run `name`: an earlier one, or a new one. Raises BenchFailed."""
    for record in installation.api.pages("/v1/runs", "runs"):
        if record["name"].startswith(f"bench-{name}-") and record["state"] == "succeeded":
            found: dict[str, Any] = installation.api.get(f"/v1/runs/{record['id']}")
            return found
    return installation.finish(installation.submit(recipe, name, config))


def found_of(installation: Installation, record: dict[str, Any], name: str, seed: int) -> Found:
    """What a finished run has measured."""
    path = f"/v1/runs/{record['id']}/metrics"
    rows = list(installation.api.pages(path, "metrics", "start"))
    accuracies = {
        int(row["evaluation/step"]): row["evaluation/accuracy"]
        for row in rows
        if "evaluation/accuracy" in row
    }
    return Found(name, seed, accuracies, sum(row.get("time/step", 0.0) for row in rows))


def students(installation: Installation, names: list[str]) -> tuple[float, list[Found]]:
    """The teacher's accuracy, and all students. Raises BenchFailed."""
    start = run_of(installation, "demo_sft", "start", {})
    model = {"path": f"run:{start['id']}"}
    training = {"max_steps": TEACHER_STEPS, "checkpoint_every": 20}
    record = run_of(installation, "demo_grpo", "teacher", {"model": model, "training": training})
    teacher = found_of(installation, record, "teacher", 0)
    found = []
    for name in names:
        for seed in SEEDS:
            changes = STUDENTS[name]
            config = {**changes, "model": model}
            config["training"] = {**changes["training"], "seed": seed}
            if "advantage" in changes.get("algorithm", {}):
                said = {"path": f"run:{record['id']}"}
                config["algorithm"] = {**changes["algorithm"], "teacher": said}
            made = run_of(installation, "demo_grpo", f"{name}{seed}", config)
            found.append(found_of(installation, made, name, seed))
            print(found[-1], flush=True)
    return list(teacher.accuracies.values())[-1], found


def table(teacher: float, found: list[Found]) -> str:
    """Markdown: of each kind of student its seeds, in their order."""
    rows = [
        f"| Student | Steps to {HALFWAY} | Steps to {teacher - CLOSE:.2f} | Last accuracy |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name in STUDENTS:
        mine = [one for one in found if one.name == name]
        if mine:
            columns = [
                *(_steps(mine, accuracy) for accuracy in (HALFWAY, teacher - CLOSE)),
                ", ".join(f"{list(one.accuracies.values())[-1]:.3f}" for one in mine),
            ]
            rows.append(f"| {name} | {' | '.join(columns)} |")
    return "\n".join(rows)


def _steps(students: list[Found], accuracy: float) -> str:
    """When each has reached `accuracy`."""
    reached = [(one.reached(accuracy), max(one.accuracies)) for one in students]
    return ", ".join(f"not in {last}" if step is None else str(step) for step, last in reached)


def main() -> int:
    """Make the missing runs, and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.recipes.distillation", description=__doc__
    )
    parser.add_argument("--only", choices=list(STUDENTS), help="default: all")
    parser.add_argument(
        "--data", type=Path, default=Settings().data / "bench-distillation", help="to work in"
    )
    given = parser.parse_args()

    def measured() -> None:
        with Installation(given.data) as installation:
            cancel_what_was_interrupted(installation)
            names = [given.only] if given.only else list(STUDENTS)
            teacher, found = students(installation, names)
        print(f"\nThe teacher's accuracy is {teacher:.3f}.\n\n{table(teacher, found)}")

    return exit_code(measured)


if __name__ == "__main__":
    sys.exit(main())
