"""A learner on two hosts under torchrun: a rank dies on either host, and the run ends as it would
have ended."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.contracts.config import parse_config
from services.contracts.records import RunState
from services.store import Store
from services.volume import Volume
from tests.chaos.torchrun import Node, both
from tests.integration.learner.conftest import Place, placed, stored
from tests.integration.learner.test_runs import SFT, add_sums, ended, rl, submit
from tests.integration.learner.torch_worker import eventually, serving
from tests.security.test_ranks import listening

STEPS = 24


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with placed(tmp_path) as here:
        yield here


async def reaches(store: Store, nodes: list[Node], run: str, step: int) -> None:
    async def reached() -> bool:
        assert [node.process.poll() for node in nodes] == [None, None], nodes[0].log.read_text()
        record = await store.runs.get(run)
        return record is not None and record.step >= step

    await eventually(reached, within=150)


@pytest.mark.chaos
@pytest.mark.multirank
async def test_a_run_survives_the_death_of_a_rank_on_either_host(place: Place) -> None:
    async with stored(place) as store:
        await add_sums(store, place.data)
        await submit(store, "first", SFT)
        training = {"max_steps": STEPS, "checkpoint_every": 3, "tokens_per_microbatch": 64}
        config = rl(training=training)
        await submit(store, "second", config)
        nodes = both(place)
        try:
            async with serving(store, Volume(place.data), "second", parse_config(config)):
                await reaches(store, nodes, "second", 2)
                ports = [port for node in nodes for port in listening(node.ranks[0])]
                # The ranks listen on the interface of MASTER_ADDR alone.
                assert {host for host, _ in ports} == {"127.0.0.1"}
                for victim in (1, 0):
                    record = await store.runs.get("second")
                    assert record is not None
                    os.kill(nodes[victim].ranks[0], signal.SIGKILL)
                    assert [node.wait() for node in nodes] == [1, 1]
                    # The engine starts the job again.
                    nodes = both(place)
                    await reaches(store, nodes, "second", min(record.step + 2, STEPS))
                record = await ended(store, "second")
            assert (record.state, record.step) == (RunState.SUCCEEDED, STEPS)
            audit = await store.ledger.audit("second")
            assert (audit.lost, audit.duplicated, audit.trained) == (0, 0, 4 * STEPS)
            # A notice for one host: both end, and the engine starts both again.
            nodes[1].process.terminate()
            assert [node.wait() for node in nodes] == [1, 1]
            assert "another rank of the job was asked to end" in nodes[0].log.read_text()
        finally:
            for node in nodes:
                node.end()
