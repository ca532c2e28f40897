"""Compares the store with a simple model of it, with time, crashes, duplicates and resumes as
steps.

Hypothesis chooses the steps. HEADRACE_EXAMPLES=1000 tries more, and others each time; without it
the same few are tried.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.integration.gateway.servers import RedisServer
from tests.integration.store.machine import StoreMachine

EXAMPLES = os.environ.get("HEADRACE_EXAMPLES")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[type[StoreMachine]]:
    """A machine on a Redis of its own that syncs once a second: thousands of writes would wait for
    the disk."""
    server = RedisServer(tmp_path, fsync="everysec")
    server.start()
    StoreMachine.url = server.url
    yield StoreMachine
    server.stop()


@pytest.mark.timeout(0 if EXAMPLES else 300)
def test_the_store_does_what_the_model_does(machine: type[StoreMachine]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=int(EXAMPLES or 25),
            stateful_step_count=60,
            deadline=None,
            derandomize=EXAMPLES is None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
