"""A real Redis, a data volume and a real learner process for these tests."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from redis.exceptions import RedisError

from services.launch.redis import find_server, servers_here, write_config
from services.process import die_with
from services.store import Store
from tests.integration.learner.torch_worker import eventually

ROOT = Path(__file__).parents[3]


@dataclass
class Place:
    """Where the processes of one test find each other."""

    redis_url: str
    data: Path

    @property
    def log(self) -> Path:
        """What learners of this place have said."""
        return self.data / "learner.log"

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {
            "HEADRACE_REDIS_URL": self.redis_url,
            "HEADRACE_DATA": str(self.data),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }

    def learner(self, *command: str) -> subprocess.Popen[bytes]:
        """A learner process; with `command` in place of `-m learner`."""
        with self.log.open("a") as log:
            return subprocess.Popen(
                [sys.executable, *(command or ("-m", "learner"))],
                env=self.environment,
                cwd=ROOT,
                stderr=log,
                preexec_fn=die_with(os.getpid()),
            )


@contextmanager
def placed(folder: Path) -> Iterator[Place]:
    """A place in `folder`, with what an earlier one has left there."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = write_config(folder / "redis", port)
    server = subprocess.Popen(
        [find_server(servers_here()), config],
        stdout=subprocess.DEVNULL,
        preexec_fn=die_with(os.getpid()),
    )
    (folder / "data").mkdir(exist_ok=True)
    yield Place(f"redis://127.0.0.1:{port}/0", folder / "data")
    server.send_signal(signal.SIGKILL)
    server.wait()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with placed(tmp_path) as here:
        yield here


@asynccontextmanager
async def stored(place: Place) -> AsyncIterator[Store]:
    """Its store, once Redis answers."""
    store = Store.from_url(place.redis_url)

    async def answers() -> bool:
        try:
            await store.ping()
        except (OSError, RedisError):
            return False
        return True

    await eventually(answers)
    yield store
    await store.close()


@pytest.fixture
async def store(place: Place) -> AsyncIterator[Store]:
    async with stored(place) as here:
        yield here
