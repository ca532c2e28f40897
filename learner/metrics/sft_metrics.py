"""Metrics of a supervised run's step, from sums over ranks, named as in docs/metrics.md."""

import math
import time
from collections.abc import Mapping, Sequence

SMOOTHING = 0.9
"""Decay of the moving averages of the loss and of the step time: a new step counts a tenth."""


def losses(
    names: Sequence[str], nats: Sequence[float], tokens: Sequence[float]
) -> dict[str, float]:
    """Return the mean loss of a step's tokens, and the mean loss of each dataset in the step, by
    name."""
    metrics = {"train/loss": sum(nats) / max(sum(tokens), 1.0)}
    if len(names) > 1:
        metrics |= {
            f"train/loss/{name}": total / count
            for name, total, count in zip(names, nats, tokens, strict=True)
            if count
        }
    return metrics


def smoothed(before: float, loss: float, steps: int) -> float:
    """Return the moving average after one more `loss`, not yet divided by its weights. `before`:
    the average after `steps` steps. A NaN or infinite loss counts as the average so far."""
    if not math.isfinite(loss):
        loss = unbiased(before, steps) if steps else 0.0
    elif before == 0.0:
        # No earlier loss was finite.
        return loss * (1 - SMOOTHING ** (steps + 1))
    return SMOOTHING * before + (1 - SMOOTHING) * loss


def unbiased(average: float, steps: int) -> float:
    """Return the moving average after `steps` steps, divided by its weights."""
    return average / (1 - SMOOTHING**steps)


def validation_losses(names: Sequence[str], sums: Sequence[Sequence[float]]) -> dict[str, float]:
    """Return the metrics of all validation rows, and of each dataset. `sums`: nats, tokens, nats of
    tokens that spell text, and bytes of that text, for each dataset."""
    nats, tokens, of_text, size = (sum(column) for column in zip(*sums, strict=True))
    metrics = {
        "validation/loss": nats / max(tokens, 1.0),
        "validation/bits_per_byte": of_text / math.log(2) / max(size, 1.0),
    }
    named = [(name, each) for name, each in zip(names, sums, strict=True) if each[1]]
    if len(named) > 1:
        metrics |= {f"validation/loss/{name}": each[0] / each[1] for name, each in named}
    return metrics


def comparisons(
    stage: str, names: Sequence[str], columns: Sequence[str], sums: Sequence[Sequence[float]]
) -> dict[str, float]:
    """Return the metrics of pairs of answers in a `stage` (train or validation): the mean of each
    of `columns` except the first, which counts the pairs, and the loss of each dataset with pairs.
    `sums`: the columns of each dataset."""
    pairs, *totals = (sum(column) for column in zip(*sums, strict=True))
    means = zip(columns[1:], totals, strict=True)
    metrics = {f"{stage}/{name}": total / max(pairs, 1.0) for name, total in means}
    at = columns.index("loss")
    named = [(name, each) for name, each in zip(names, sums, strict=True) if each[0]]
    if len(names) > 1 and (stage == "train" or len(named) > 1):
        metrics |= {f"{stage}/loss/{name}": each[at] / each[0] for name, each in named}
    return metrics


def time_metrics(spent: Mapping[str, float]) -> dict[str, float]:
    return {
        "time/rows": spent["rows"],
        "time/training": spent["training"],
        "time/validation": spent["validation"],
        "time/checkpointing": spent["checkpointing"],
    }


class Speed:
    """Measures the speed of steps, and estimates the time that remains."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._average = 0.0
        self._steps = 0

    def begin(self) -> None:
        """Let the next step begin now."""
        self._last = time.monotonic()

    def metrics(self, rows: int, tokens: int, left: int) -> dict[str, float]:
        """Return the metrics of the step that ends now, with `left` steps to go. Return no metrics
        for a step without tokens."""
        now = time.monotonic()
        seconds, self._last = max(now - self._last, 1e-9), now
        if not tokens:
            return {}
        self._steps += 1
        self._average = SMOOTHING * self._average + (1 - SMOOTHING) * seconds
        return {
            "time/step": seconds,
            "time/remaining": left * unbiased(self._average, self._steps),
            "throughput/tokens_per_second": tokens / seconds,
            "throughput/samples_per_second": rows / seconds,
        }
