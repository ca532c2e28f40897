"""Kill processes during a small run, and check the finished run.

One seed decides the victims and the times: HEADRACE_CHAOS_SEED repeats them. (The step of the run
and the work of a process at that time are not repeated.)
"""

import json
import os
import random
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.cli.client import Away, Gateway
from headrace.cli.events import Event
from services.launch import Stack, UpOptions
from tests.chaos.victims import kill

ROOT = Path(__file__).parents[2]
SEED = int(os.environ.get("HEADRACE_CHAOS_SEED") or random.SystemRandom().randrange(1 << 32))
REAL = os.environ.get("HEADRACE_CHAOS_VLLM") == "real"
"""Whether a real vLLM samples; else the scripted stand-in."""
PARALLEL = os.environ.get("HEADRACE_CHAOS_PARALLEL", "auto")
"""`training.parallel` of the runs, on two ranks."""

GROUPS, ETA = 4, 2
# 18+2, as the demo model's tokenizer writes it: `2`, `0`, end of sequence. Every answer is right,
# so that a reward other than 1 is one that a kill has made.
RIGHT = [6, 4, 2]
STAND_IN = {
    "HEADRACE_VLLM_COMMAND": f"{sys.executable} -m tests.scripted_vllm",
    "HEADRACE_SCRIPTED_VLLM": json.dumps(
        {"replies": [RIGHT], "tokens_per_second": 10, "update_seconds": 0.1}
    ),
    "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    # Every group: the files must survive what Redis survives.
    "HEADRACE_PAYLOAD_FILE_BYTES": "512",
    # Nothing here needs a GPU, and no number of them limits how many parts there may be.
    "CUDA_VISIBLE_DEVICES": "",
}
FINAL = ("succeeded", "failed", "cancelled")


def options(data: Path, rollouts: int, ranks: int = 2) -> UpOptions:
    """An installation in which parts may die as often as they are killed."""
    return UpOptions(
        data=data,
        port=0,
        reward_port=0,
        rollouts=rollouts,
        ranks=ranks,
        environment={} if REAL else STAND_IN,
        grace=10,
        start_tries=1000,
    )


@dataclass
class Chaos:
    """One installation, and runs on it."""

    stack: Stack
    api: Gateway
    model: str = ""
    done: list[str] = field(default_factory=list)
    """The kills, each with the step that the run had reached."""

    def prepare(self) -> None:
        """A dataset, and a model to start from."""
        rows = [{"prompt": f"{n}+{20 - n}", "answer": "20"} for n in range(20)]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        self.api.post("/v1/datasets", files={"file": ("sums.jsonl", text)}, data={"name": "sums"})
        training = {"max_steps": 5, "rows_per_step": 8}
        run = self._submit("demo_sft", {"training": training, "data": {"dataset": "sums"}})
        record = self.ended(run)
        assert record["state"] == "succeeded", record["reason"]
        self.model = f"run:{run}"

    def submit(self, steps: int, **other: dict[str, Any] | None) -> str:
        """Submit a run of `steps` steps; `other`: sections of its config."""
        config: dict[str, Any] = {
            # Published as deltas.
            "model": {"path": self.model, "dtype": "bfloat16"},
            "data": {"dataset": "sums"},
            # Equal rewards, and gradients nevertheless: the tokens of an answer differ in what they
            # return. Steps this small change few weights, so versions are deltas with content.
            "algorithm": {
                "prompts_per_step": GROUPS,
                "samples_per_prompt": 4,
                "advantage": {"type": "global_whiten", "gamma": 0.5},
            },
            "optimizer": {"lr": 1e-6},
            "rollout": {"max_staleness": ETA, "lease_seconds": 30 if REAL else 4},
            "training": {"max_steps": steps, "checkpoint_every": 3, "parallel": PARALLEL},
            "evaluation": {"dataset": "sums", "rows": 8, "every": 8},
        }
        for name, section in other.items():
            config[name] = section and {**(config.get(name) or {}), **section}
        return self._submit("demo_grpo", config)

    def submit_live(self, steps: int, sessions: int, idle_seconds: float) -> str:
        """Submit a live run that trains `sessions` sessions in each step."""
        config = {
            "model": {"path": self.model, "dtype": "bfloat16"},
            "sampling": {"max_tokens": 40},
            "rollout": {
                "episode": {"type": "sessions", "idle_seconds": idle_seconds},
                "max_staleness": ETA,
                "lease_seconds": 30 if REAL else 4,
                "vllm": {"max_model_len": 64, "max_num_seqs": 256, "dtype": "float32"},
            },
            "algorithm": {"prompts_per_step": sessions},
            "training": {"max_steps": steps, "checkpoint_every": 3, "parallel": PARALLEL},
        }
        return self._submit("live", config)

    def _submit(self, recipe: str, config: dict[str, Any]) -> str:
        return str(self.api.post("/v1/runs", json={"recipe": recipe, "config": config})["id"])

    def get(self, path: str) -> Any:
        """An answer of the API; waits for the gateway, and for what the gateway needs."""
        deadline = time.monotonic() + 60
        while True:
            try:
                return self.api.get(path)
            except Away:
                if time.monotonic() > deadline:
                    raise
                threading.Event().wait(0.1)

    def record(self, run: str) -> dict[str, Any]:
        """The run as it stands."""
        record: dict[str, Any] = self.get(f"/v1/runs/{run}")
        return record

    def reaches(self, run: str, step: int, within: float = 180) -> None:
        """Wait until that many batches are trained."""
        deadline = time.monotonic() + within
        while (record := self.record(run))["step"] < step:
            assert record["state"] not in FINAL, f"{record['state']}: {record['reason']}"
            assert time.monotonic() < deadline, f"not at step {step} within {within} s: {record}"
            threading.Event().wait(0.1)

    def all_serve(self, run: str) -> bool:
        """Whether the vLLM of each worker serves a version of the run."""
        workers = self.get("/v1/workers")["workers"]
        return all(one["run"] == run and one["version"] is not None for one in workers)

    def kill(self, run: str, victims: Sequence[str], chance: random.Random) -> None:
        """One process of each part, at once."""
        for victim in victims:
            said = kill(self.stack, victim, chance, lambda: self.record(run)["state"] in FINAL)
            self.done.append(said)

    def ended(self, run: str) -> dict[str, Any]:
        for _ in self.api.events(run):
            self.stack.check()
        return self.record(run)

    @property
    def story(self) -> str:
        """How to do it again, and what was killed."""
        return f"HEADRACE_CHAOS_SEED={SEED}; killed: {'; '.join(self.done)}"

    def trained_rows(self, run: str, steps: int) -> list[dict[str, Any]]:
        """Return the metrics of the run's steps, one line a step."""
        lines = (self.stack.data / f"runs/{run}/metrics.jsonl").read_text().splitlines()
        rows = [row for row in map(json.loads, lines) if "reward/mean" in row]
        assert [row["step"] for row in rows] == list(range(1, steps + 1)), self.story
        return rows

    def unharmed(self, run: str, steps: int, lost_versions: bool = False) -> None:
        """Wait for the run's end: it is as if nothing had been killed. `lost_versions`: evaluations
        may have lost the weights that they were of; not that of the last step, which is there."""
        record, story = self.ended(run), self.story
        assert (record["state"], record["reason"]) == ("succeeded", ""), story
        assert (record["step"], record["committed_step"]) == (steps, steps), story
        self.clean(run, trained=steps * GROUPS, in_flight=0)
        rows = self.trained_rows(run, steps)
        assert [row["step"] for row in rows if row["reward/missing"] != 0] == [], story
        # No rank compares a version that it did not make from the one before.
        assert max(row.get("push/changed", 0) for row in rows) > 0, story
        events = [event for event in self.api.events(run) if isinstance(event, Event)]
        evaluations = self.get(f"/v1/runs/{run}/evaluations")["evaluations"]
        for one in evaluations:
            if lost_versions and one["state"] == "failed" and one["step"] < steps:
                assert "cannot be loaded any more" in one["reason"], (story, one)
                continue
            assert one["state"] == "done", (story, evaluations)
            answers = self.get(f"/v1/runs/{run}/evaluations/{one['id']}/answers")["rows"]
            assert [row["row"] for row in answers] == list(range(8)), (story, one)
        accuracy = {e.data["step"]: e.data["accuracy"] for e in events if e.kind == "evaluation"}
        assert max(accuracy) == steps, story
        if not REAL:
            assert [row["step"] for row in rows if row["reward/mean"] != 1] == [], story
            assert set(accuracy.values()) == {1.0}, story

    def clean(self, run: str, **also: int) -> dict[str, Any]:
        """The audit, in which nothing is lost, twice, or older than allowed."""
        audit: dict[str, Any] = self.get(f"/v1/runs/{run}/audit")
        story = f"{self.story}; {audit}"
        assert (audit["lost"], audit["duplicated"]) == (0, 0), story
        # A task that kills have made stale three times may end so; nothing else ends untrained.
        assert audit["dropped"].keys() <= {"too_slow"}, story
        dropped = sum(audit["dropped"].values())
        assert audit["tasks"] == audit["trained"] + dropped + audit["in_flight"], story
        assert audit["max_staleness_seen"] <= ETA, story
        assert also.items() <= audit.items(), story
        return audit
