"""Which checkpoints of a run are deleted, and when: after each commit, all but the newest."""

import re
import shutil
from pathlib import Path

from learner.batch.staleness import Ancestry
from learner.persist.checkpoint_parts import NAME, UNFINISHED
from learner.state import Progress


def retain(root: Path, keep: int, current: Progress) -> list[str]:
    """Delete all but the newest `keep` checkpoints on the path to `current`, the run's current one,
    which always stays, as does the one that it names as kept. Returns the deleted names.

    Checkpoints of a dead lineage beyond the fork were never committed, and are deleted; so are
    unfinished ones of learners that died. A lineage that `current` does not know is a successor's:
    its folders are not touched.
    """
    ancestry = Ancestry(tuple(current.lineages))
    known = {lineage for lineage, _ in current.lineages}
    found = {name: at for name, at in _checkpoints(root, NAME).items() if at[1] in known}
    path = [
        name
        for name, (step, lineage) in sorted(found.items(), key=lambda item: item[1][0])
        if step <= current.step and ancestry.passed(lineage, step)
    ]
    kept = {name for name in path if found[name][0] == current.kept_step}
    gone = sorted(found.keys() - set(path[-keep:]) - {current.directory} - kept)
    for name in gone:
        # Renamed first: a reader sees a whole checkpoint or none.
        (root / name).rename(root / f".{name}.old")
    for name, (_, lineage) in _checkpoints(root, UNFINISHED).items():
        if lineage in known:
            shutil.rmtree(root / name, ignore_errors=True)
    return gone


def _checkpoints(root: Path, pattern: re.Pattern[str]) -> dict[str, tuple[int, str]]:
    """(step, lineage) of the folders whose names have this form."""
    found = ((path.name, pattern.fullmatch(path.name)) for path in root.iterdir())
    return {name: (int(m[1]), m[2]) for name, m in found if m}
