"""Rows that reasoning-gym makes. The same task, number of rows and seed give the same rows.

The library is optional, and pinned, since the same version has to score the answers
(`reward/verifiers/tasks/reasoning.py`).
"""

import dataclasses
import json
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from headrace.nearest import did_you_mean
from services.datasets.row_checks import DatasetError

MAPPING = "reasoning_gym"
"""The mapping that its rows have."""


def gym_version() -> str:
    """Return the installed version. Raises DatasetError if reasoning-gym is not installed."""
    try:
        return version("reasoning-gym")
    except PackageNotFoundError:
        raise DatasetError(
            "reasoning-gym is not installed here: pip install 'headrace-server[tasks]' (and where "
            "the reward service runs)"
        ) from None


def gym_rows(task: str, size: int, seed: int, config: dict[str, Any]) -> Iterator[bytes]:
    """Yield `size` rows of `task` as lines of JSON.

    Raises DatasetError for an unknown task or key, and for a task whose rows are scored
    differently after a round trip through JSON.
    """
    gym_version()
    gym, factory = import_module("reasoning_gym"), import_module("reasoning_gym.factory")
    if task not in factory.DATASETS:
        raise DatasetError(
            f"reasoning-gym has no task {task!r}{did_you_mean(task, factory.DATASETS)}; it has "
            f"{', '.join(sorted(factory.DATASETS))}"
        )
    known = [field.name for field in dataclasses.fields(factory.DATASETS[task][1])]
    for key in config:
        if key not in known:
            raise DatasetError(
                f"task {task} has no key {key!r}{did_you_mean(key, known)}; it has "
                f"{', '.join(known)}"
            )
    try:
        rows = gym.create_dataset(task, size=size, seed=seed, **config)
        yield from (_line(task, gym.get_score_answer_fn(task), row) for row in rows)
    except DatasetError:
        raise
    except Exception as error:  # the task's code may raise anything for a wrong value
        raise DatasetError(f"task {task} makes no rows of this config: {error!r}") from None


def _line(task: str, score: Any, row: dict[str, Any]) -> bytes:
    try:
        line = json.dumps(row)
    except (TypeError, ValueError) as error:
        raise DatasetError(f"rows of task {task} are not JSON: {error}") from None
    if score(row["answer"], row) != score(row["answer"], json.loads(line)):
        raise DatasetError(
            f"task {task} cannot be used: its rows are scored otherwise once they were JSON"
        )
    return line.encode() + b"\n"
