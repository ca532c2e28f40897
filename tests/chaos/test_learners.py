"""Several learners that want one pool: exactly one has it, and the run does not notice."""

import random
import signal

import pytest
import redis

from services.store.keys import run_key
from tests.chaos.killing import REAL, Chaos
from tests.integration.launch.conditions import eventually
from tests.integration.learner.conftest import Place
from tests.integration.learner.forked import import_once

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900 if REAL else 240)]

STEPS = 16
TAKEN = 3


def test_of_learners_that_fight_for_a_pool_one_trains_the_run(
    chaos: Chaos, chance: random.Random
) -> None:
    import_once()
    run = chaos.submit(STEPS)
    chaos.reaches(run, chance.randrange(2, STEPS - 6))

    # The pool is free for whoever is first, once the lock of the dead one lapses.
    place = Place(chaos.stack.redis_url, chaos.stack.data)
    rivals = [place.learner() for _ in range(2)]
    chaos.kill(run, ["rank supervisor"], chance)

    try:
        chaos.unharmed(run, STEPS)
        with redis.Redis.from_url(chaos.stack.redis_url) as client:
            assert client.llen(run_key(run, "lineages")) == 2
        eventually(lambda: TAKEN in [one.poll() for one in rivals])
        said = place.log.read_text()
        assert "pool 'default' already has a learner" in said
        assert "Traceback" not in said
    finally:
        for one in rivals:
            one.send_signal(signal.SIGKILL)
            one.wait()
