"""Rows that are appended with `/v1/prompts` while a run goes on are trained in that run."""

import json
from typing import Any

import redis

from services.contracts.rows.task import TaskPosition
from services.store.keys import run_key
from tests.integration.installation.conftest import Installation
from tests.integration.launch.conditions import eventually

SEED = 3


def trained_rows(store: redis.Redis, run: str) -> set[int]:
    """Dataset rows of all groups that a checkpoint covers, by the ledger of the run."""
    ledger: Any = store.xrange(run_key(run, "ledger"))
    rows = set()
    for _, said in ledger:
        if said[b"end"] == b"trained":
            for task in json.loads(said[b"tasks"]):
                rows.add(TaskPosition.parse(task).row(SEED))
    return rows


def test_rows_appended_during_a_run_are_trained_in_it(installation: Installation) -> None:
    old = [{"prompt": f"{n}+2", "answer": str(n + 2)} for n in range(8)]
    new = [{"prompt": f"{n}+3", "answer": str(n + 3)} for n in range(4)]
    installation.add("growing", old)
    run = installation.submit(
        data={"dataset": "growing"},
        training={"max_steps": 5000, "checkpoint_every": 2, "seed": SEED},
    )
    with redis.Redis.from_url(installation.stack.redis_url) as store:
        eventually(lambda: trained_rows(store, run) == set(range(8)))

        added = installation.api.post("/v1/prompts", json={"dataset": "growing", "prompts": new})

        assert (added["first"], added["rows"]) == (8, 12)
        eventually(lambda: trained_rows(store, run) == set(range(12)))
    installation.api.post(f"/v1/runs/{run}/cancel")
    record, _ = installation.ended(run)
    assert record["state"] == "cancelled", record["reason"]
    audit = installation.api.get(f"/v1/runs/{run}/audit")
    assert (audit["lost"], audit["duplicated"], audit["dropped"]) == (0, 0, {})
