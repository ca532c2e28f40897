"""Learning rate over a run, as a share of its peak. Pure functions of the position in the run."""

import math

from services.contracts.config.training import Schedule


def lr_share(
    schedule: Schedule, batch: int, total: int, update: int = 0, updates: int = 1
) -> float:
    """Return the share of the peak learning rate for `update` of `updates` of `batch` of `total`,
    all from 0.

    The position is counted in batches. A run that resumes with another number of updates per batch
    therefore continues at the same rate, except during the first steps of warm-up. Warm-up rises
    linearly and is never zero. The decay would reach `floor` one update after the last, and a batch
    beyond `total` gets `floor`.
    """
    at = batch + update / updates
    if at < schedule.warmup_steps:
        return (at * updates + 1) / (schedule.warmup_steps * updates + 1)
    start = schedule.warmup_steps
    if schedule.type == "wsd":
        start = max(start, total - round(schedule.decay_share * total))
    # The last update trains at progress 1 − 1/n: a learning rate of exactly 0 would waste it.
    progress = min(max((at - start) / max(total - start, 1), 0.0), 1.0)
    match schedule.type:
        case "constant":
            return 1.0
        case "linear" | "wsd":
            return 1.0 - (1.0 - schedule.floor) * progress
        case "cosine":
            return (
                schedule.floor + (1.0 - schedule.floor) * (1.0 + math.cos(math.pi * progress)) / 2.0
            )
