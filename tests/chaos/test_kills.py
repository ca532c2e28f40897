"""Every kind of process dies, at random moments of a run: the run ends as it would have ended."""

import os
import random
import signal
import threading

import pytest

from tests.chaos.killing import REAL, Chaos
from tests.chaos.victims import VICTIMS, damage, that_can_hang
from tests.integration.launch.conditions import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900 if REAL else 240)]

STEPS = 12
# More than a run trains until a worker notices that its vLLM hangs, until a killed gateway says
# again how far the run is, or until somebody has met a weight update, which takes a moment.
LONG = 60


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_run_survives_the_death_of(chaos: Chaos, chance: random.Random, victim: str) -> None:
    steps = LONG if victim == "vLLM in a weight update" else STEPS
    run = chaos.submit(steps)

    chaos.reaches(run, chance.randrange(STEPS - 4))
    threading.Event().wait(chance.uniform(0, 0.5))
    chaos.kill(run, [victim], chance)

    chaos.unharmed(run, steps)


def test_a_run_survives_the_death_of_several_at_once(chaos: Chaos, chance: random.Random) -> None:
    run = chaos.submit(LONG)

    chaos.reaches(run, chance.randrange(STEPS - 4))
    threading.Event().wait(chance.uniform(0, 0.5))
    others = [victim for victim in VICTIMS if victim != "vLLM in a weight update"]
    chaos.kill(run, chance.sample(others, 3), chance)

    chaos.unharmed(run, LONG)


def test_a_run_survives_a_vllm_that_hangs(chaos: Chaos, chance: random.Random) -> None:
    run = chaos.submit(LONG)
    chaos.reaches(run, chance.randrange(2, STEPS))
    # One that starts is given more time than one that serves.
    eventually(lambda: chaos.all_serve(run))
    hung = chance.choice(that_can_hang(chaos.stack))

    os.kill(hung, signal.SIGSTOP)
    chaos.done.append(f"vLLM hangs (pid {hung})")

    # Its worker notices, by the leases' time, and ends it: a hung server holds a GPU.
    eventually(lambda: hung not in VICTIMS["vLLM"](chaos.stack), within=300 if REAL else 150)
    chaos.unharmed(run, LONG)


@pytest.mark.parametrize("delta", [True, False], ids=["a delta", "a whole version"])
def test_a_run_survives_a_damaged_file_of_its_newest_weights(
    chaos: Chaos, chance: random.Random, delta: bool
) -> None:
    run = chaos.submit(STEPS)
    chaos.reaches(run, chance.randrange(2, STEPS - 7))
    weights = chaos.stack.data / f"runs/{run}/weights"

    chaos.done.append(damage(weights, delta, cut=chance.random() < 0.5, chance=chance))
    # The next one has to read all files of a version.
    chaos.kill(run, ["rollout worker"], chance)

    chaos.unharmed(run, STEPS, lost_versions=True)
