"""The jobs of deploy/slurm on a real Slurm of two nodes; a scripted vLLM samples.

`make test-slurm`. One run goes through all of it: workers come and go, the learner is preempted,
reaches its time limit, and loses a node.
"""

import json
import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace.cli.client import Away, Gateway
from tests.chaos.killing import STAND_IN
from tests.slurm.conftest import Slurm

pytestmark = pytest.mark.timeout(1800)

FINAL = ("succeeded", "failed", "cancelled")


def until(condition: Callable[[], Any], what: str, within: float = 300) -> Any:
    """Wait for a true value of `condition`. The gateway may be away meanwhile."""
    deadline = time.monotonic() + within
    while True:
        try:
            if value := condition():
                return value
        except Away:
            pass
        assert time.monotonic() < deadline, f"not within {within} s: {what}"
        time.sleep(0.5)


def connected(slurm: Slurm) -> Gateway:
    file = slurm.data / "api-key"
    until(file.exists, "the gateway has a key")
    os.environ["HEADRACE_API_KEY"] = file.read_text().strip()
    api = Gateway(f"http://127.0.0.1:{slurm.ports['gateway']}")
    until(lambda: api.get("/v1/runs"), "the gateway answers")
    return api


def trained_first(api: Gateway) -> str:
    rows = [{"prompt": f"{n}+{20 - n}", "answer": "20"} for n in range(20)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    api.post("/v1/datasets", files={"file": ("sums.jsonl", text)}, data={"name": "sums"})
    config = {"training": {"max_steps": 5, "rows_per_step": 8}, "data": {"dataset": "sums"}}
    run = str(api.post("/v1/runs", json={"recipe": "demo_sft", "config": config})["id"])
    record = until(lambda: ended(api, run), "the first run ends")
    assert record["state"] == "succeeded", record["reason"]
    return run


def ended(api: Gateway, run: str) -> dict[str, Any] | None:
    record: dict[str, Any] = api.get(f"/v1/runs/{run}")
    return record if record["state"] in FINAL else None


def test_a_run_survives_what_slurm_does_to_its_jobs(slurm: Slurm) -> None:
    slurm.environment |= STAND_IN | {"PYTHONPATH": slurm.environment["PYTHONPATH"]}
    slurm.submit("service.sbatch", "--partition=urgent", "--nodelist=one", "--cpus-per-task=1")
    learner = slurm.submit("learner.sbatch", "--nodes=2", "--cpus-per-task=2")
    slurm.submit("workers.sbatch", "--array=0", "--cpus-per-task=1", "--nodelist=one")
    api = connected(slurm)
    config = {
        "model": {"path": f"run:{trained_first(api)}", "dtype": "bfloat16"},
        "data": {"dataset": "sums"},
        "algorithm": {
            "prompts_per_step": 4,
            "samples_per_prompt": 4,
            "advantage": {"type": "global_whiten", "gamma": 0.5},
        },
        "optimizer": {"lr": 1e-6},
        "rollout": {"max_staleness": 2, "lease_seconds": 4},
        "training": {"max_steps": 5000, "checkpoint_every": 3},
        "evaluation": {"dataset": "sums", "rows": 8, "every": 1000},
    }
    run = api.post("/v1/runs", json={"recipe": "demo_grpo", "config": config})["id"]

    def step() -> int:
        record = api.get(f"/v1/runs/{run}")
        assert record["state"] not in FINAL, record["reason"]
        return int(record["step"])

    def goes_on(what: str) -> None:
        """Wait until the learner has left its nodes, and trains again."""
        until(lambda: slurm.jobs().get(learner) == "PENDING", f"{what}: the learner is requeued")
        before = step()
        # Slurm waits two minutes before it starts a requeued job.
        slurm.run("scontrol", "update", f"jobid={learner}", "starttime=now", "timelimit=60")
        until(lambda: step() > before + 1, f"{what}: the run goes on")

    until(lambda: step() >= 3, "the run trains")

    # The array grows and shrinks.
    more = slurm.submit("workers.sbatch", "--array=1-2", "--cpus-per-task=1", "--nodelist=one")

    def serving() -> int:
        return sum(one["version"] is not None for one in api.get("/v1/workers")["workers"])

    until(lambda: serving() == 3, "three workers serve")
    slurm.run("scancel", "--batch", "--signal=INT", f"{more}_2")
    until(lambda: f"{more}_2" not in slurm.jobs(), "a worker of the array ends")
    until(lambda: serving() == 2, "two workers serve")

    # A job of higher priority takes a node: the notice leaves a checkpoint.
    options = ("--parsable", "--partition=urgent", "--nodelist=two", "--exclusive")
    slurm.run("sbatch", *options, "--wrap", "sleep 3")
    goes_on("preemption")
    slurm.run("scontrol", "update", f"jobid={learner}", "timelimit=1")
    goes_on("time limit")
    assert slurm.output("learner").count("run goes on at the next start") >= 2
    slurm.kill_node("two")
    until(lambda: slurm.jobs().get(learner) == "PENDING", "Slurm misses the node")
    slurm.start_node("two")
    goes_on("a node dies")

    api.post(f"/v1/runs/{run}/cancel")
    until(lambda: ended(api, run), "the run ends")
    audit = api.get(f"/v1/runs/{run}/audit")
    assert (audit["lost"], audit["duplicated"]) == (0, 0)
