"""Several learners that want one pool: exactly one has it, and the run does not notice."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from services.process import die_with
from services.store.keys import run_key
from tests.chaos.killing import REAL, ROOT, Chaos
from tests.integration.launch.conditions import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900 if REAL else 240)]

STEPS = 16
TAKEN = 3


def rival(chaos: Chaos, log: Path) -> subprocess.Popen[bytes]:
    """One more learner of the pool, without torchrun."""
    with log.open("a") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "learner"],
            stderr=file,
            preexec_fn=die_with(os.getpid()),
            cwd=ROOT,
            env=os.environ
            | {
                "HEADRACE_REDIS_URL": chaos.stack.redis_url,
                "HEADRACE_DATA": str(chaos.stack.data),
                "OMP_NUM_THREADS": "1",
            },
        )


def test_of_learners_that_fight_for_a_pool_one_trains_the_run(
    chaos: Chaos, chance: random.Random, tmp_path: Path
) -> None:
    run = chaos.submit(STEPS)
    chaos.reaches(run, chance.randrange(2, STEPS - 6))

    # The pool is free for whoever is first, once the lock of the dead one lapses.
    rivals = [rival(chaos, tmp_path / "log") for _ in range(2)]
    chaos.kill(run, ["torchrun"], chance)

    try:
        chaos.unharmed(run, STEPS)
        with redis.Redis.from_url(chaos.stack.redis_url) as client:
            assert client.llen(run_key(run, "lineages")) == 2
        eventually(lambda: TAKEN in [one.poll() for one in rivals], within=60)
        said = (tmp_path / "log").read_text()
        assert "pool 'default' already has a learner" in said
        assert "Traceback" not in said
    finally:
        for one in rivals:
            one.kill()
            one.wait()
