"""A healthy run in the middle of training, and its diagnosis."""

from typing import Any

from services.contracts.events import Event
from services.contracts.records import RunRecord, RunState, WorkerRecord
from services.contracts.why import (
    LearnerHold,
    Situation,
)
from services.diagnosis.diagnose import diagnose

NOW = 1_000.0


LEARNER = LearnerHold(host="box", pid=7, held_seconds=60, prolonged_seconds_ago=1)


def run(**fields: Any) -> RunRecord:
    config = {"algorithm": {"prompts_per_step": 4}, "rollout": {"stragglers": "wait"}}
    given: dict[str, Any] = {
        "id": "r1", "name": "mine", "pool": "default", "kind": "rl", "state": RunState.RUNNING,
        "config": config, "created": 0.0, "step": 7, "max_steps": 20, "version": 7,
    }  # fmt: skip
    return RunRecord(**given | fields)


def worker(id: str = "w", heard: float = 1.0, **fields: Any) -> WorkerRecord:
    given: dict[str, Any] = {
        "id": id, "pool": "default", "host": "h", "pid": 1, "state": "generating", "run": "r1",
        "version": 7,
    }  # fmt: skip
    return WorkerRecord(**given | fields).at(NOW, NOW - heard)


def event(kind: Any, ago: float, **data: Any) -> Event:
    return Event(id=f"{int((NOW - ago) * 1000)}-0", time=0.0, kind=kind, data=data)


def step(ago: float, **data: Any) -> Event:
    return event("step", ago, **{"step": 7, "time/step": 4.0, "bottleneck": "none"} | data)


def said(**fields: Any) -> tuple[str, str]:
    given: dict[str, Any] = {"time": NOW, "run": run(), "learner": LEARNER, "workers": [worker()]}
    why = diagnose(Situation(**given | fields))
    return why.cause, why.words
