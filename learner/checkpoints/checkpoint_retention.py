"""Delete checkpoints of a run: at a learner's start the unfinished ones of earlier learners, and
after each commit all except the newest."""

import itertools
import re
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from learner.batch.staleness import Ancestry
from learner.checkpoints.checkpoint_writer import UNFINISHED
from learner.state import TrainingProgress
from services.volume.checkpoint import NAME
from services.volume.kept_checkpoints import hide, pinned_names


class KeepRule(NamedTuple):
    """The checkpoints of a run that stay besides the current, the pinned and the best one."""

    newest: int
    """How many of the newest ones."""
    every: int | None = None
    """A number of steps: the first checkpoint in each part of this length stays too."""

    def kept(self, steps: Sequence[int]) -> set[int]:
        """Return the indexes of the steps that stay. `steps`: of all checkpoints, in order."""
        kept = set(range(len(steps))[-self.newest :])
        if self.every:
            parts = [step // self.every for step in steps]
            kept |= {parts.index(part) for part in parts if part}
        return kept


def retain(root: Path, rule: KeepRule, current: TrainingProgress) -> list[str]:
    """Delete all checkpoints except those on the path to `current`, the run's current checkpoint,
    that `rule` keeps, and the checkpoint that `current` names as kept. `current` itself always
    stays. Returns the deleted names.

    Checkpoints of a dead lineage beyond the fork were never committed, and are deleted. Unfinished
    checkpoints of dead learners are deleted too. A lineage that `current` does not know is a
    successor's: its folders are not touched.
    """
    ancestry = Ancestry(tuple(current.lineages))
    known = {lineage for lineage, _ in current.lineages}
    checkpoints = {name: at for name, at in _checkpoints(root, NAME).items() if at[1] in known}
    path = [
        name
        for name, (step, lineage) in sorted(checkpoints.items(), key=lambda item: item[1][0])
        if step <= current.step and ancestry.passed(lineage, step)
    ]
    kept = {name for name in path if checkpoints[name][0] == current.kept_step}
    kept |= pinned_names(root)
    kept |= {path[place] for place in rule.kept([checkpoints[name][0] for name in path])}
    old = sorted(checkpoints.keys() - {current.directory} - kept)
    gone = [name for name in old if hide(root / name, f".{name}.old")]
    _delete_unfinished(root, known)
    return gone


def clear(root: Path, lineages: Sequence[tuple[str, int]], current: str) -> None:
    """Delete the unfinished checkpoints of learners before `current`, the lineage that has taken
    over the run. Otherwise a disk with space for the kept checkpoints and one more could not take a
    new one. `lineages`: lineages of all starts, in order. A lineage after `current` is a
    successor's."""
    earlier = itertools.takewhile(
        lambda lineage: lineage != current, (name for name, _ in lineages)
    )
    if root.exists():
        _delete_unfinished(root, set(earlier))


def _delete_unfinished(root: Path, lineages: Collection[str]) -> None:
    for name, (_, lineage) in _checkpoints(root, UNFINISHED).items():
        if lineage in lineages:
            shutil.rmtree(root / name, ignore_errors=True)


def _checkpoints(root: Path, pattern: re.Pattern[str]) -> dict[str, tuple[int, str]]:
    """Return (step, lineage) of the folders whose names match `pattern`."""
    matches = ((path.name, pattern.fullmatch(path.name)) for path in root.iterdir())
    return {name: (int(m[1]), m[2]) for name, m in matches if m}
