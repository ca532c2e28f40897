"""A real Redis, a data volume and real learner processes."""

import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from redis.exceptions import RedisError

from headrace.death_signal import die_with
from services.launch.redis import Listening, bundled_server, write_config
from services.store import Store
from tests.integration.learner.forked import Learner, rank_variables
from tests.integration.learner.torch_worker import eventually


@dataclass
class Place:
    """Addresses that the processes of one test share."""

    redis_url: str
    data: Path
    started: list[Learner] = field(default_factory=list)

    @property
    def log(self) -> Path:
        """The log of this place's learners."""
        return self.data / "learner.log"

    def learner(self, *command: str) -> Learner:
        """Start `python -m learner.rank`, or `python -m` with `command`."""
        return self.ranks(1, *command)[0]

    def ranks(self, number: int, *command: str) -> list[Learner]:
        """Start the ranks of one learner as the supervisor does."""
        environment = os.environ | {
            "HEADRACE_REDIS_URL": self.redis_url,
            "HEADRACE_DATA": str(self.data),
            "OMP_NUM_THREADS": "1",
        }
        started = [
            Learner(command or ("learner.rank",), environment | variables, self.log)
            for variables in rank_variables(number, self.data)
        ]
        self.started += started
        return started


@contextmanager
def placed(folder: Path) -> Iterator[Place]:
    """Make a place in `folder`, which may hold an earlier place's files."""
    at = Listening(folder / "redis", folder / "redis" / "redis.sock")
    config = write_config(at)
    server = subprocess.Popen(
        [bundled_server(), config],
        stdout=subprocess.DEVNULL,
        preexec_fn=die_with(os.getpid()),
    )
    (folder / "data").mkdir(exist_ok=True)
    place = Place(at.url(""), folder / "data")
    yield place
    for learner in place.started:
        learner.send_signal(signal.SIGKILL)
    server.send_signal(signal.SIGKILL)
    server.wait()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with placed(tmp_path) as here:
        yield here


@asynccontextmanager
async def stored(place: Place) -> AsyncIterator[Store]:
    """Return its store once Redis answers."""
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
