"""One installation for all kills."""

import random
from collections.abc import Iterator

import pytest

from headrace.cli.client import Gateway
from services.launch import Stack, supervised_part
from tests.chaos.killing import REAL, SEED, Chaos, options


@pytest.fixture(scope="package")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chaos]:
    data = tmp_path_factory.mktemp("chaos")
    with (
        pytest.MonkeyPatch.context() as patch,
        Stack(options(data, rollouts=1 if REAL else 2)) as stack,
    ):
        # The pause before a restart doubles with each kill of a part within a minute.
        patch.setattr(supervised_part, "LONGEST_PAUSE", 0.5)
        one = Chaos(stack, Gateway(stack.gateway_url, stack.check, stack.api_key))
        one.prepare()
        yield one


@pytest.fixture
def chaos(installed: Chaos) -> Chaos:
    installed.done.clear()
    return installed


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """Random numbers that depend only on the seed and the test."""
    print(f"HEADRACE_CHAOS_SEED={SEED}")
    return random.Random(f"{SEED}/{request.node.name}")
