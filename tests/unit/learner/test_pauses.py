"""The reason of a paused run, if there are several reasons at once."""

from types import SimpleNamespace
from typing import Any

import pytest

from learner.store.run_store import RunStore

FULL, DISK = "Redis has no memory", "cannot write runs/r/metrics.jsonl"


class Thread:
    """A connection to the store that is never called."""

    def __init__(self) -> None:
        nouns = ("runs", "trajectories", "evaluations", "ledger", "live_sessions")
        self.store = SimpleNamespace(**dict.fromkeys(nouns))
        self.payloads = None
        self.when_full: Any = None
        self.when_not_full: Any = None


@pytest.mark.parametrize("first", ["Redis", "disk"])
def test_a_run_whose_disk_and_redis_are_full_goes_on_when_both_take_writes(first: str) -> None:
    thread = Thread()
    record: Any = SimpleNamespace(id="r", committed_step=0, lineage="a", resume_from=None, pool="p")
    store = RunStore(thread, record)  # type: ignore[arg-type]
    written: list[tuple[str, str]] = []
    store._write_state = lambda *state: written.append(state)  # type: ignore[method-assign]
    store.set_state("running")
    store.pause(DISK)
    thread.when_full(FULL)
    if first == "Redis":
        thread.when_not_full()
        assert written[-1] == ("paused", DISK)
        store.go_on()
    else:
        store.go_on()
        assert written[-1] == ("paused", FULL)
        thread.when_not_full()
    assert written[-1] == ("running", "")
