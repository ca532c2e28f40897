"""A watcher's view of a run, folded from the run's events, and its text in one line.

Pure: events in, text out.
"""

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from headrace.cli.events import Event
from headrace.terminal import one_line
from headrace.wording import counted, on_request

REWARD = "reward/mean"
STALENESS = "staleness/mean"
TOKENS = "throughput/tokens_per_second"
BOTTLENECK = "bottleneck"
LOSS = "train/loss"
VALIDATION = "validation/loss"

BARS = "▁▂▃▄▅▆▇█"


@dataclass
class RunView:
    """The state of a run, as its events have told it so far."""

    name: str
    id: str
    kind: str
    state: str
    reason: str
    max_steps: int | None
    step: int = 0
    metrics: dict[str, Any] = field(default_factory=dict)
    rewards: list[float] = field(default_factory=list)
    evaluations: list[tuple[int, float]] = field(default_factory=list)
    """(step, accuracy), or (step, mean reward) where the verifiers only rate answers."""
    step_times: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=20))
    """(Unix seconds, step) of the newest steps, for the time that is left."""
    vllm_start: tuple[float, float | None] | None = None
    """When the first vLLM began to start (Unix seconds), and how long that usually takes, until one
    is ready."""
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=6))

    @classmethod
    def of(cls, record: dict[str, Any]) -> "RunView":
        """Return the view of a run whose record in the API is `record`, before any event."""
        known = ("name", "id", "kind", "state", "reason", "max_steps", "step")
        view = cls(**{key: record[key] for key in known})
        view.name, view.reason = one_line(view.name), one_line(view.reason or "")
        return view

    def apply(self, event: Event) -> str:
        """Apply one event. Return the line that describes it."""
        data = event.data
        if event.kind == "state":
            self.state, self.reason = data["state"], one_line(data.get("reason") or "")
        elif event.kind == "step":
            self.metrics = data
            self.step = int(data.get("step", self.step + 1))
            self.step_times.append((event.time, self.step))
            if (reward := data.get(REWARD)) is not None:
                self.rewards.append(float(reward))
        elif event.kind == "progress":
            self.metrics = {**self.metrics, **data}
            if data.get("unit", "steps") in ("step", "steps"):
                self.step = int(data.get("done", data.get("step", self.step)))
                self.max_steps = int(data.get("total", 0)) or self.max_steps
                self.step_times.append((event.time, self.step))
        elif event.kind == "evaluation":
            self.evaluations.append((int(data["step"]), _measured(data)[1]))
        elif event.kind == "worker" and data["state"] == "ready":
            self.vllm_start = None
        elif event.kind == "worker" and data["state"] == "starting" and self.vllm_start is None:
            self.vllm_start = event.time, data.get("usual_seconds")
        elif event.kind == "resumed":
            # The pace is that of steps without a pause.
            self.step_times.clear()
        line = one_line(line_of(event, self.max_steps))
        # Steps and the state have a place of their own.
        if event.kind not in ("step", "progress", "state"):
            self.lines.append(line)
        return line

    def phase(self, now: float) -> str:
        """Return how far the start of vLLM is at `now` (Unix seconds); "" if none starts."""
        if self.vllm_start is None or self.state not in ("starting", "running"):
            return ""
        began, usual = self.vllm_start
        of = " s so far" if usual is None else f" of about {usual:.0f} s"
        return f"vLLM starts, {max(0.0, now - began):.0f}{of}"

    @property
    def seconds_left(self) -> float | None:
        """Estimate the remaining seconds by the pace of the newest steps. Return None if the pace
        is unknown."""
        if self.max_steps is None or len(self.step_times) < 2:
            return None
        (begin, first), (end, last) = self.step_times[0], self.step_times[-1]
        return (end - begin) / (last - first) * (self.max_steps - last) if last > first else None


def line_of(event: Event, max_steps: int | None) -> str:
    """Describe one event in one plain line."""
    data = event.data
    if event.kind == "state":
        return f"{data['state']}{': ' + data['reason'] if data.get('reason') else ''}"
    if event.kind == "step":
        return f"step {data.get('step', '?')}/{max_steps or '?'}  " + "  ".join(figures(data))
    if event.kind == "progress":
        done, unit = data.get("done", data.get("step")), data.get("unit", "steps")
        return f"{done}/{data.get('total')} {unit}  " + "  ".join(figures(data))
    if event.kind == "evaluation":
        name, value = _measured(data)
        of = f" of {data['name']}" if "name" in data else ""
        low, high = data.get(f"{name}_low"), data.get(f"{name}_high")
        interval = "" if low is None or high is None else f" [{low:.3f}, {high:.3f}]"
        rows = f"{counted(int(data['rows']), 'row')}{of}"
        return f"evaluation at step {data['step']}: {name} {value:.3f}{interval} on {rows}"
    if event.kind == "checkpoint":
        gone = ", ".join(data.get("deleted", ()))
        older = f" (in place of {gone})" if gone else ""
        return f"checkpoint at step {data.get('step')}: {data.get('directory')}{older}"
    if event.kind == "deleted":
        words = [*data["checkpoints"], *(["its rollouts"] if data["rollouts"] else [])]
        return f"deleted after its end: {', '.join(words)}"
    if event.kind == "worker":
        return f"worker {data['worker']} {data['state']}: {data['detail']}"
    if event.kind == "edit" and "values" in data:
        values = ", ".join(f"{key} {value:g}" for key, value in data["values"].items())
        return f"from step {data['step']} on: {values}"
    if event.kind == "edit":
        words = [
            f"{key} from {_short(change['from'])} to {_short(change['to'])}"
            for key, change in data["changes"].items()
        ]
        return f"{data['by']} changes {', '.join(words)}"
    if event.kind in ("paused", "resumed"):
        return f"{event.kind} {on_request(data['by'])}"
    if event.kind == "tracker":
        return f"{data['tracker']} has the metrics: {data['place']}"
    return f"warning: {data.get('message')}"


def _short(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


def _measured(evaluation: dict[str, Any]) -> tuple[str, float]:
    """Return an evaluation's main metric: accuracy if the verifiers report it, else reward."""
    name = "accuracy" if "accuracy" in evaluation else "reward"
    return name, float(evaluation[name])


def figures(metrics: dict[str, Any]) -> list[str]:
    """Return the metrics that a watcher looks at first, if they are there."""
    result = []
    if (reward := metrics.get(REWARD)) is not None:
        result.append(f"reward {float(reward):.3f}")
    if (loss := metrics.get(LOSS)) is not None and reward is None:
        result.append(f"loss {float(loss):.4f}")
    if (validation := metrics.get(VALIDATION)) is not None:
        result.append(f"validation loss {float(validation):.4f}")
    if (staleness := metrics.get(STALENESS)) is not None:
        result.append(f"staleness {float(staleness):.2f}")
    if (tokens := metrics.get(TOKENS)) is not None:
        result.append(f"{float(tokens):,.0f} tokens/s")
    if bottleneck := metrics.get(BOTTLENECK):
        result.append(f"bottleneck {bottleneck}")
    return result


def sparkline(values: list[float], width: int) -> str:
    """Draw `values` as at most `width` bars between their minimum and maximum. Longer lists are
    averaged in equal pieces."""
    if not values or width < 1:
        return ""
    count = min(width, len(values))
    cuts = [round(i * len(values) / count) for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(cuts)]
    low, high = min(means), max(means)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((mean - low) * scale)] for mean in means)
