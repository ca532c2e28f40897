"""A Redis that loses writes, and the run whose commits it loses."""

import json
import os
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import redis
from redis.asyncio import Redis

from headrace.death_signal import die_with
from services.launch.redis import Listening, bundled_server, write_config
from services.launch.redis_trial import increments
from services.recovery.lost_writes import compare
from services.recovery.record_copies import LEDGER, Commit, keep_dataset, keep_run
from services.recovery.recover import cut_ledgers, recover
from services.store import Store
from services.volume import checksum
from tests.integration.launch.conditions import eventually
from tests.integration.store.scene import RUN, Scene


class Server:
    """A Redis that can be killed and started again on its files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._at = Listening(folder, folder / "redis.sock")
        self.url = self._at.url("")
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [bundled_server(), write_config(self._at)],
            stdout=subprocess.DEVNULL,
            preexec_fn=die_with(os.getpid()),
        )
        patient = redis.retry.Retry(redis.backoff.ConstantBackoff(0.05), 2000)
        with redis.Redis.from_url(self.url, retry=patient) as client:
            client.ping()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def file(self) -> Path:
        """The file that Redis appends to."""
        return increments(self.folder)[-1]

    def rewrite(self) -> None:
        """Have Redis write its file anew, and wait until its child has written the snapshot."""
        with redis.Redis.from_url(self.url) as client:
            client.bgrewriteaof()
            eventually(lambda: not client.info("persistence")["aof_rewrite_in_progress"])
            assert client.info("persistence")["aof_last_bgrewrite_status"] == "ok"

    @asynccontextmanager
    async def scene(self) -> AsyncIterator[Scene]:
        store, raw = Store.from_url(self.url), Redis.from_url(self.url)
        yield Scene(store, raw)
        await raw.aclose()
        await store.close()


@contextmanager
def server(folder: Path) -> Iterator[Server]:
    one = Server(folder)
    try:
        yield one
    finally:
        one.kill()


async def commit(scene: Scene, data: Path, step: int, copied: str) -> str:
    """Train and commit a step, as a learner does; returns the newest row that its copy has."""
    await scene.plan(step, await scene.finished(2))
    checkpoint = f"runs/{RUN}/checkpoints/step-{step:06d}-{scene.lineage}"
    (data / checkpoint / "training").mkdir(parents=True)
    state = data / checkpoint / "training" / "state.json"
    state.write_text(json.dumps({"lineages": [[scene.lineage, 0]]}))
    entry = {"bytes": state.stat().st_size, "xxh3": checksum(state)}
    manifest = {"files": {"training/state.json": entry}}
    (data / checkpoint / "manifest.json").write_text(json.dumps(manifest))
    store = scene.store
    await store.trajectories.commit(RUN, scene.fencing_token, scene.lineage, step, checkpoint)
    rows = await store.ledger.rows_after(RUN, copied)
    with (data / "runs" / RUN / LEDGER).open("ab") as file:
        file.write(msgspec.json.encode(Commit(time.time(), step, checkpoint, rows)) + b"\n")
    scene.version = step
    return rows[-1][0]


async def begun(scene: Scene, data: Path, **options: Any) -> None:
    """A run on seven rows, with its copies."""
    await scene.start(rows=7, **options)
    record, dataset = await scene.store.runs.get(RUN), await scene.store.datasets.find("d")
    assert record is not None
    assert dataset is not None
    keep_run(data, record)
    keep_dataset(data, dataset)


async def trained(scene: Scene, data: Path, steps: int) -> list[int]:
    """Commit `steps` steps with their copies. Return the size of Redis' file after each."""
    await begun(scene, data)
    copied, sizes = "", []
    for step in range(1, steps + 1):
        copied = await commit(scene, data, step, copied)
        sizes.append(step)
    return sizes


async def recover_losses(store: Store, data: Path) -> list[str]:
    """Recover as `headrace recover` does it on a Redis that runs."""
    done, steps = await recover(store, data, await compare(store, data))
    cut_ledgers(data, steps)
    return done
