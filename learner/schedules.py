"""Learning rate over a run, as a share of its peak. Pure functions of the step."""

import math

from services.contracts.config.training import Schedule


def lr_share(schedule: Schedule, step: int, total: int) -> float:
    """Share of the peak learning rate for the optimizer's `step` (from 0) of `total`.

    Warm-up rises linearly and never is zero; the decay would reach `floor` one step after the last,
    and a step beyond `total` gets it.
    """
    if step < schedule.warmup_steps:
        return (step + 1) / (schedule.warmup_steps + 1)
    start = schedule.warmup_steps
    if schedule.type == "wsd":
        start = max(start, total - round(schedule.decay_share * total))
    # The last step trains at progress 1 - 1/n: a learning rate of exactly 0 would waste it.
    progress = min(max((step - start) / max(total - start, 1), 0.0), 1.0)
    match schedule.type:
        case "constant":
            return 1.0
        case "linear" | "wsd":
            return 1.0 - (1.0 - schedule.floor) * progress
        case "cosine":
            return (
                schedule.floor + (1.0 - schedule.floor) * (1.0 + math.cos(math.pi * progress)) / 2.0
            )
