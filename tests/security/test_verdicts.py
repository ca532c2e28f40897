"""What a program is rewarded with: never more than it deserves, and never less."""

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
"""Of the corpus, beside what was once a fault: all of it, with `python -m tests.security.corpus`,
takes minutes."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    found = Service(tmp_path_factory.mktemp("reward"))
    yield found
    found.end()


def test_no_trick_is_rewarded_and_no_correct_program_is_not(service: Service) -> None:
    """What was once a fault, and a part of the rest of the corpus: another one each time.
    HEADRACE_CORPUS_SEED repeats one."""
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
