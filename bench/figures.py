"""From what was recorded to the figures of the report. Pure: plain values in, plain values out.

A run is measured over its steady steps only: the first `warmup` steps (empty queues, cold caches)
are left out, and the run is cancelled after the last one, so that no step is counted during which
nothing was left to generate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

Row = Mapping[str, Any]


class TooFewSteps(ValueError):
    """A run recorded fewer steps than are to be measured."""


@dataclass(frozen=True)
class Steady:
    """A training run over its steady steps. Seconds, unless said otherwise."""

    warmup: int
    """Steps left out before the window."""
    steps: int
    """Steps in it."""
    seconds: float
    """From the end of the last warm-up step to the end of the last step: wall time."""
    samples: int
    """Completions trained in the window."""
    tokens: int
    """Their tokens, prompts not counted."""
    samples_per_second: float
    tokens_per_second: float
    step_median: float
    """Median wall time of a step."""
    learner_waits: float
    """Share of the window in which the learner waited for groups."""
    workers_wait: float
    """Share of the window in which a worker had room but no admission, mean over workers."""
    training: float
    """Share of the window in which the learner trained."""
    staleness: float
    """Mean over the groups, in versions, each by its oldest token."""
    wire_bytes_per_token: float
    """Bytes of the groups on the wire, prompts and headers included, per completion token."""


def steady(rows: Sequence[Row], warmup: int, steps: int, batch: int) -> Steady:
    """The steady part of a run from its rows of metrics.jsonl, step 1 first.

    `batch`: completions trained in a step. `warmup` is at least 1, because the window begins at
    the end of a step. Raises TooFewSteps.
    """
    if warmup < 1 or steps < 1:
        raise ValueError(f"warmup {warmup} and steps {steps} must both be at least 1")
    if len(rows) < warmup + steps:
        raise TooFewSteps(f"{len(rows)} steps were recorded; {warmup} + {steps} are needed")
    window = rows[warmup : warmup + steps]
    seconds = float(window[-1]["time"]) - float(rows[warmup - 1]["time"])
    tokens = [round(row["response/tokens_mean"] * batch) for row in window]
    return Steady(
        warmup=warmup,
        steps=steps,
        seconds=seconds,
        samples=batch * steps,
        tokens=sum(tokens),
        samples_per_second=batch * steps / seconds,
        tokens_per_second=sum(tokens) / seconds,
        step_median=median(row["time/step"] for row in window),
        learner_waits=total(window, "time/waiting_for_groups") / seconds,
        workers_wait=total(window, "time/workers_waiting_for_admission") / seconds,
        training=total(window, "time/training") / seconds,
        staleness=total(window, "staleness/mean") / steps,
        wire_bytes_per_token=sum(
            row["wire/bytes_per_token"] * n for row, n in zip(window, tokens, strict=True)
        )
        / sum(tokens),
    )


def total(rows: Sequence[Row], name: str) -> float:
    """The sum of a metric over rows."""
    return sum(float(row[name]) for row in rows)


@dataclass(frozen=True)
class Updates:
    """Weight updates of a window, in seconds."""

    count: int
    live_median: float
    """From the end of the optimizer step until the version was live on the worker."""
    live_max: float
    pause_median: float
    """For how long generation paused."""
    pause_max: float


def updates(records: Sequence[Row], run: str, first: int, last: int) -> Updates | None:
    """Updates of `run` to the versions `first` to `last`, from the rollout worker's log records.

    None where the worker applied none of them (each was overtaken by a newer one).
    """
    own = [
        record
        for record in records
        if record.get("event") == "weights live"
        and record.get("run") == run
        and first <= int(str(record["version"]).rpartition(":")[2]) <= last
    ]
    if not own:
        return None
    live = [float(record["seconds"]) for record in own]
    paused = [float(record["paused"]) for record in own]
    return Updates(len(own), median(live), max(live), median(paused), max(paused))


@dataclass(frozen=True)
class Generated:
    """Tokens generated in one stretch of wall time."""

    tokens: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Over the whole stretch."""
        return self.tokens / self.seconds


def departures(groups: Sequence[tuple[int, float]], skip: int, count: int) -> Generated:
    """`count` groups, in the order they were finished, after `skip` to warm up.

    groups: (tokens, generated at). The time runs from the end of the last group skipped to the end
    of the last one counted. Work goes on at both ends, so what had been begun before the window
    and what was left unfinished after it cancel out; from the first lease on, the time would hold
    work on groups that are not counted. Raises ValueError where there are too few.
    """
    if skip < 1 or count < 1:
        raise ValueError(f"skip {skip} and count {count} must both be at least 1")
    if len(groups) < skip + count:
        raise ValueError(f"{len(groups)} groups were generated; {skip} + {count} are needed")
    ordered = sorted(groups, key=lambda group: group[1])
    window = ordered[skip : skip + count]
    return Generated(sum(tokens for tokens, _ in window), window[-1][1] - ordered[skip - 1][1])


def joined(stretches: Sequence[Generated]) -> Generated:
    """Several stretches as one: all tokens over all seconds."""
    return Generated(sum(s.tokens for s in stretches), sum(s.seconds for s in stretches))
