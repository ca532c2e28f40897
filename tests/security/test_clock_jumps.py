"""Clocks jump: ages stay right, and nothing outlives its deadline by the jump."""

import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr
from redis.asyncio import Redis

from services.contracts.events import Event
from services.contracts.records import WorkerRecord
from services.contracts.why import ClockJump, Situation, seconds_since
from services.datasets.segments import UNPUBLISHED
from services.gateway.run_file_retention import remove_unfinished
from services.settings import Settings
from services.store import Store
from services.store.insight import ClockJumps, lock_token
from services.store.keys import pool_key, run_key, token_key
from tests.integration.gateway.servers import RedisServer
from tests.integration.store.scene import RUN, Scene, record

HOUR = 3600.0


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server.url
    server.stop()


@pytest.fixture
async def scene(redis_url: str) -> AsyncIterator[Scene]:
    raw, store = Redis.from_url(redis_url), Store.from_url(redis_url)
    await raw.flushall()
    yield Scene(store, raw)
    await store.close()
    await raw.aclose()


def test_an_age_leaves_out_a_jump_forward_that_came_after_the_event() -> None:
    clock = ClockJumps()
    assert clock.observe(1000, 50) == ()
    jumps = clock.observe(1060 + HOUR, 110)
    assert jumps == (ClockJump(until=1060, by=HOUR),)
    now = 1060 + HOUR
    # Before the first look, between the looks, and after the jump.
    assert [seconds_since(at, now, jumps) for at in (990, 1055, 1058 + HOUR)] == [70, 5, 2]


def test_an_age_is_right_for_an_event_of_before_the_clock_went_back() -> None:
    clock = ClockJumps()
    clock.observe(10_000, 50)
    jumps = clock.observe(10_060 - HOUR, 110)
    assert seconds_since(9_990, 10_060 - HOUR, jumps) == 70
    assert seconds_since(10_055 - HOUR, 10_060 - HOUR, jumps) == 5


def test_a_slow_answer_does_not_count_as_a_clock_jump() -> None:
    clock = ClockJumps()
    clock.observe(1000, 50)
    assert clock.observe(1014, 60) == ()


def test_events_from_the_future_have_the_age_that_their_sender_says_and_none_below_0() -> None:
    def event(taken: float, sent: float) -> Event:
        return Event(id=f"{taken * 1000:.0f}-0", time=sent, kind="step", data={})

    worker = WorkerRecord(id="w", pool="p", host="h", pid=1, state="idle", heartbeat=900)
    now = Situation(time=500.0, run=record())
    assert now.age(event(490, 300)) == 10
    assert now.age(event(4090, 480)) == 20
    assert now.age(event(4090, 4090)) == 0
    assert now.heard(worker) == 0


async def test_a_lease_of_before_the_clock_went_back_lapses_in_its_time(scene: Scene) -> None:
    await scene.start(eta=9)
    lost, kept = await scene.leased(2)
    key = run_key(RUN, "attempts")
    await scene.raw.zincrby(key, HOUR * 1000, lost.attempt)
    deadline = await scene.raw.zscore(key, kept.attempt)

    await scene.leased(1)

    assert await scene.raw.zscore(key, lost.attempt) < (time.time() + 61) * 1000
    assert await scene.raw.zscore(key, kept.attempt) == deadline


async def test_a_worker_that_died_before_the_clock_went_back_is_not_alive_for_an_hour(
    scene: Scene,
) -> None:
    worker = WorkerRecord(id="w", pool="default", host="h", pid=1, state="idle")
    await scene.store.workers.heartbeat(worker)
    await scene.raw.zincrby(pool_key("default", "heartbeats"), HOUR * 1000, "w")
    (seen,) = await scene.store.workers.list("default")
    assert seen.heartbeat < time.time() + 1


async def test_a_session_outlives_a_jump_of_an_hour_and_a_login_link_works_once_after_it(
    scene: Scene,
) -> None:
    sessions = scene.store.page_sessions
    for by in (-HOUR, HOUR):
        await sessions.begin("session", "s", "key", int(24 * HOUR))
        await sessions.begin("login", "l", "key", 600)
        for kind in ("session", "login"):
            name = token_key(kind, {"session": "s", "login": "l"}[kind])
            # Redis keeps the time at which a token expires.
            expires = await scene.raw.pexpiretime(name)
            await scene.raw.pexpireat(name, int(expires + by * 1000))
        assert await sessions.key_of("s") == "key"
        # A jump forward may end a link early; no jump makes it work twice.
        assert await sessions.use_login("l") == (None if by < 0 else "key")
        assert await sessions.use_login("l") is None
        await sessions.end("s")
        assert await sessions.key_of("s") is None


@pytest.mark.parametrize("by", [-HOUR, HOUR])
def test_an_upload_that_is_being_written_outlives_a_clock_jump(tmp_path: Path, by: float) -> None:
    upload = tmp_path / "datasets" / f"{UNPUBLISHED}now"
    upload.parent.mkdir()
    upload.touch()
    os.utime(upload, (time.time() - by,) * 2)

    remove_unfinished(tmp_path)

    assert upload.exists()


async def test_all_leases_lapse_when_the_clock_goes_forward_and_no_task_is_twice(
    scene: Scene,
) -> None:
    await scene.start(eta=9)
    leases = await scene.leased(2)
    for lease in leases:
        await scene.raw.zincrby(run_key(RUN, "attempts"), -HOUR * 1000, lease.attempt)
    again = await scene.leased(2)
    assert [one.task for one in again] == [one.task for one in leases]
    assert not await scene.complete(leases[0])
    assert await scene.complete(again[0])
    audit = await scene.store.ledger.audit(RUN)
    assert (audit.tasks, audit.in_flight, audit.lost, audit.duplicated) == (2, 2, 0, 0)


def test_a_learner_does_not_wait_an_hour_for_a_lock_of_before_the_clock_went_back(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Imports torch.
    from learner.store.thread import StoreThread

    settings = Settings(redis_url=SecretStr(redis_url), data=tmp_path, pool="clock")
    with StoreThread(settings, threading.Event()) as thread:
        pools = thread.store.pools
        thread.call(lambda: pools.lock("clock", lock_token("dead", 1, 1.0), HOUR))
        monkeypatch.setattr("learner.store.thread.LOCK_SECONDS", 1.0)
        began = time.monotonic()
        thread.take_pool()
        assert time.monotonic() - began < 30
