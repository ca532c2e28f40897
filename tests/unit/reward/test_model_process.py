"""The times at which an ended process of a reward model is restarted."""

import asyncio
import errno
import os
from itertools import pairwise

import pytest

from reward.models import process
from reward.models.process import (
    FIRST_PAUSE,
    HEALTHY,
    LONGEST_PAUSE,
    ModelLoadError,
    ModelProcess,
    next_pause,
)
from reward.models.wire import ModelOptions


class Unstartable(ModelProcess):
    """A process that cannot start because the system has no resources left."""

    def __init__(self) -> None:
        super().__init__("small", ModelOptions(path="nowhere"))
        self.again = asyncio.Event()
        self._tried = False

    def _start(self) -> None:  # type: ignore[override]
        if self._tried:
            self.again.set()
        self._tried = True
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


async def test_a_process_that_cannot_be_started_again_is_started_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "FIRST_PAUSE", 0.001)
    model = Unstartable()
    loaded = asyncio.get_running_loop().create_future()
    loaded.set_result(None)
    keeper = asyncio.create_task(model._keep(loaded))
    async with asyncio.timeout(60):
        await model.again.wait()
    assert not keeper.done()
    keeper.cancel()


async def test_a_process_that_never_starts_is_reported() -> None:
    async with asyncio.timeout(60):
        with pytest.raises(ModelLoadError, match="Cannot allocate memory"):
            await Unstartable().open()


def test_pauses_between_restarts_double_up_to_the_longest() -> None:
    pauses = [next_pause(0.0, lived=0.1)]
    for _ in range(10):
        pauses.append(next_pause(pauses[-1], lived=0.1))

    assert pauses[0] == FIRST_PAUSE
    assert all(after == min(LONGEST_PAUSE, 2 * before) for before, after in pairwise(pauses))
    assert pauses[-1] == LONGEST_PAUSE


def test_a_model_process_that_worked_for_long_is_restarted_at_once() -> None:
    assert next_pause(LONGEST_PAUSE, lived=HEALTHY + 1) == FIRST_PAUSE


async def test_a_process_that_ends_at_once_after_it_was_loaded_is_waited_for_again() -> None:
    model = ModelProcess("small", ModelOptions(path="nowhere"))
    asking = asyncio.create_task(model.scores([]))
    await asyncio.sleep(0)
    model._up.set()
    model._up.clear()
    done, _ = await asyncio.wait([asking], timeout=0.1)
    assert not done
    asking.cancel()
