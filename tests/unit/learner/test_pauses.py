"""The state and the reason of a paused run: a full disk, a full Redis, a request, or several."""

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
        self.store.runs = SimpleNamespace(set_state=None)
        self.payloads = None
        self.when_full: Any = None
        self.when_not_full: Any = None


def run_store(thread: Thread, paused_by: str = "") -> tuple[RunStore, list[tuple[str, str]]]:
    """Return a run's store, and the states that it writes."""
    fields = {"committed_step": 0, "lineage": "a", "resume_from": None, "pool": "p"}
    record: Any = SimpleNamespace(id="r", paused_by=paused_by, **fields)
    store = RunStore(thread, record)  # type: ignore[arg-type]
    written: list[tuple[str, str]] = []
    store.call = lambda _, *state, **__: written.append(state)  # type: ignore[assignment, method-assign]
    return store, written


@pytest.mark.parametrize("first", ["Redis", "disk"])
def test_a_run_whose_disk_and_redis_are_full_goes_on_when_both_take_writes(first: str) -> None:
    thread = Thread()
    store, written = run_store(thread)
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


def test_a_run_is_paused_on_request_through_a_restart_and_a_full_disk() -> None:
    store, written = run_store(Thread(), paused_by="ann")
    store.set_state("starting")
    store.set_state("running")
    assert written == [("paused", "on request of ann")]
    store.pause(DISK)
    store.go_on()
    store.paused_by = ""
    assert (store.heed_pause(), written[-1]) == (False, ("running", ""))
    store.paused_by = "bob"
    assert (store.heed_pause(), store.heed_pause()) == (True, True)
    assert written[-2:] == [("running", ""), ("paused", "on request of bob")]
