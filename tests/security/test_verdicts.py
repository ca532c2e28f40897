"""A program gets exactly the reward that it deserves."""

import asyncio
import os
import random
from collections.abc import Iterator

import pytest

from tests.integration.reward.conftest import Service, isolation
from tests.security.corpus import right, wrong
from tests.security.corpus.scoring import scored, undeserved

__all__ = ["isolation"]

pytestmark = pytest.mark.usefixtures("isolation")

SHARE = 0.1
"""Share of the corpus that is scored in addition to earlier faults. The whole corpus
(`python -m tests.security.corpus`) takes minutes."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    found = Service(tmp_path_factory.mktemp("reward"))
    yield found
    found.end()


def test_tricks_earn_nothing_and_correct_programs_are_rewarded(service: Service) -> None:
    """Score all earlier faults and a random part of the other programs.
    HEADRACE_CORPUS_SEED repeats a part."""
    seed = int(os.environ.get("HEADRACE_CORPUS_SEED", random.randrange(2**32)))
    entries = [*right(), *wrong()]
    rest = [entry for entry in entries if not entry.fault]
    chosen = random.Random(seed).sample(rest, int(len(rest) * SHARE))
    chosen += [entry for entry in entries if entry.fault]

    async def score() -> dict[str, str]:
        await service.ready()
        async with service.client() as client:
            return undeserved(chosen, await scored(client, chosen))

    assert asyncio.run(score()) == {}, f"HEADRACE_CORPUS_SEED={seed}"
