"""`headrace why` against the real gateway: in words, as JSON, and for a run that there is not."""

import json
from collections.abc import Callable
from pathlib import Path

from services.contracts.records import WorkerRecord
from services.store import Store
from services.store.insight import lock_token
from tests.integration.gateway.servers import Headrace, InStore, queued

POOL = "why"


def given(in_store: InStore, action: Callable[[Store], object]) -> None:
    in_store(action)  # type: ignore[arg-type]


def test_why_is_words_first_and_everything_as_json(
    headrace: Headrace, rows: Path, model: Path, in_store: InStore
) -> None:
    run = queued(headrace, "--set", f"model.path={model}", "--pool", POOL)

    shown = headrace("why", run)

    assert shown.returncode == 0, shown.stderr
    first, *_ = shown.stdout.splitlines()
    assert first == f"no learner: it is queued, and no learner serves pool '{POOL}'"
    assert "learner: none is alive" in shown.stdout

    given(in_store, lambda s: s.pools.lock(POOL, lock_token("box", 7, 0), 10))
    given(in_store, lambda s: s.runs.take(POOL))
    given(in_store, lambda s: s.runs.acquire(run, "ab12cd"))
    given(in_store, lambda s: s.runs.set_state(run, "running", ""))
    worker = WorkerRecord(id="w", pool=POOL, host="h", pid=1, state="idle", error="no room")
    given(in_store, lambda s: s.workers.heartbeat(worker.model_copy(update={"restarts": 2})))
    computation = {"attention": "flash attention in blocks: the learner computes on a cpu"}
    given(in_store, lambda s: s.runs.update(run, 1, {"computation": computation}))

    why = json.loads(headrace("why", run, "--json").stdout)
    shown = headrace("why", run)

    assert why["run"] == run
    assert why["workers"][0]["restarts"] == 2
    assert why["remarks"][0]["text"] == "no room"
    assert why["learner"]["host"] == "box"
    assert "learner: on box (pid 7)" in shown.stdout
    assert "w: no room" in shown.stdout
    assert why["computation"] == computation
    assert "attention: flash attention in blocks: the learner computes on a cpu" in shown.stdout


def test_a_run_that_there_is_not_is_one_sentence(headrace: Headrace) -> None:
    refused = headrace("why", "nobody")

    assert refused.returncode == 1
    assert refused.stderr.startswith("error: there is no run 'nobody'")
