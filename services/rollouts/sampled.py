"""A few answers of each step, for a reader who wants to see what the policy answers: the best and
the worst of one group, and others."""

import json
from collections.abc import Iterator, Sequence
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any

import numpy as np

from services.contracts.groups.sampled_answer import SampledAnswer, cut, extremes
from services.rollouts.index import newest_first
from services.rollouts.index_record import Records
from services.rollouts.reader import LISTED, Damage, Place, place_of, rows_of
from services.rollouts.rollout_filter import RolloutFilter

PER_STEP = 4
"""Answers of each step that are shown."""
COLUMNS = [*LISTED, "reasons"]
Rewards = Sequence[float | None]


def sampled_answers(
    folder: Path, step: int | None, limit: int, after: Place | None = None
) -> tuple[list[SampledAnswer], Place | None]:
    """Return up to `limit` answers of `step` (None: of all steps), the newest first, after the
    answer at `after`. Returns them, and the place after which older answers follow, or None."""
    chosen = [*islice(_chosen(folder, step, after), limit + 1)]
    shown, following = chosen[:limit], len(chosen) > limit
    answers: list[SampledAnswer] = []
    for _, of_step in groupby(shown, key=lambda record: int(record["step"])):
        rows = rows_of(folder, np.array([*of_step]), COLUMNS, Damage())
        answers += map(_answer, rows)
    return answers, place_of(shown[-1]) if following else None


def _chosen(folder: Path, step: int | None, after: Place | None) -> Iterator[np.void]:
    """Yield the index records of the shown answers, the newest first: of a step the best last."""
    for number, records in newest_first(folder, RolloutFilter(step), after[0] if after else None):
        of_step = [*of_one_step(records, number)][::-1]
        if after and number == after[0]:
            places = [place_of(record) for record in of_step]
            of_step = of_step[places.index(after) + 1 :] if after in places else []
        yield from of_step


def of_one_step(records: Records, step: int) -> Records:
    """Return the records of the answers of a step that are shown, the best first."""
    starts = np.flatnonzero(np.diff(records["group"], prepend=-1))
    rewards = [
        [None if np.isnan(reward) else float(reward) for reward in part["reward"]]
        for part in np.split(records, starts[1:])
    ]
    return records[[int(starts[g]) + i for g, i in choose(rewards, step, PER_STEP)]]


def choose(rewards: Sequence[Rewards], step: int, count: int) -> list[tuple[int, int]]:
    """Choose (group, sample) of up to `count` completions, from each group's `rewards`. First the
    best and the worst of one group, which changes with `step`; then one completion of each
    following group, and so on."""
    if not rewards:
        return []
    turn = step % len(rewards)
    first = [(turn, i) for i in extremes(rewards[turn])]
    others = (pair for pair in _others(rewards, step) if pair not in first)
    return list(islice(chain(first, others), count))


def _others(rewards: Sequence[Rewards], step: int) -> Iterator[tuple[int, int]]:
    """Yield every completion: one of each group, starting after the group of `step`, then a second
    of each, and so on."""
    for again in range(max(len(group) for group in rewards)):
        for after in range(1, len(rewards) + 1):
            group = (step + after) % len(rewards)
            if again < len(rewards[group]):
                yield group, (step + again) % len(rewards[group])


def _answer(row: dict[str, Any]) -> SampledAnswer:
    return SampledAnswer(
        task=row["group"],
        tokens=row["length"],
        prompt=cut(row["prompt"]),
        completion=cut(row["completion"]),
        reasons=json.loads(row["reasons"]),
        versions=sorted({span["version"] for span in row["versions"]} - {None}),
        **{
            name: row[name]
            for name in (
                "step", "row", "dataset", "own", "reference", "reward", "status", "components",
                "advantage", "finish_reason",
            )
        },
    )  # fmt: skip
