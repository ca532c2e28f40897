"""Events of a run, in order: what `watch`, the page and `GET /v1/runs/{id}/events` show.

Kinds and their data:
- `state`: {"state", "reason"}
- `step`: the step's metrics, flat, by the names of docs/metrics.md
- `evaluation`: figures of a finished evaluation, by the names of docs/metrics.md without
  `evaluation/`: "id", "step", "version", "name", "rows", "reward", and "accuracy" if a verifier
  says what is correct
- `progress`: {"done", "total", "unit", ...}: supervised runs and other long stretches
- `worker`: {"worker", "state", "detail"}: a rollout worker has `joined` the run, is `starting` its
  vLLM, is `ready`, or has `left` on request; each at most once a run. `starting` has
  "usual_seconds" if such a start was measured on its host
- `warning`: {"message"}
- `checkpoint`: {"step", "directory"}
- `edit`: {"by", "changes": {key: {"from", "to"}}} when a run is changed on request, and {"step",
  "values": {key: value}} when its learner takes that: the first step that has the values
- `paused` and `resumed`: {"by"}: when that is asked for. A `state` follows when the learner does it
- `tracker`: {"tracker", "place"}: the metrics are carried there
"""

from typing import Any, Literal

from pydantic import BaseModel

EventKind = Literal[
    "state",
    "step",
    "evaluation",
    "progress",
    "worker",
    "warning",
    "checkpoint",
    "edit",
    "paused",
    "resumed",
    "tracker",
]


class Event(BaseModel):
    """One event. `id` orders events within a run and is what a client resumes after."""

    id: str
    time: float
    kind: EventKind
    data: dict[str, Any]

    @property
    def taken(self) -> float:
        """When Redis received it, in Unix seconds by its clock; `time` is the sender's."""
        return int(self.id.partition("-")[0]) / 1000
