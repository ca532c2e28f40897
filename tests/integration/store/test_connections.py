"""The store works over every kind of Redis that a URL can name, and reconnects to each."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import RedisCluster
from redis.crc import key_slot
from redis.exceptions import AuthenticationError, ConnectionError, RedisError

from services.contracts.chains import ChainRecord
from services.contracts.records import RunState, WorkerRecord
from services.contracts.run_edits import RunEdit
from services.contracts.weights import WeightFile, WeightManifest
from services.settings import Settings
from services.store import Store
from services.store.access.idempotency_keys import Answered, Claim
from services.store.at_start import cannot_use
from services.store.keys import run_key
from services.store.scripts import Scripts, read_scripts
from services.store.work.tasks import Lease
from tests.evaluating import answered, request
from tests.integration.store.scene import MINUTE, RUN, Scene, record, segment, tasks
from tests.integration.store.servers import (
    DURABLE,
    Server,
    certificates,
    cluster_agrees,
    start_cluster,
    tls_in_front_of,
)
from tests.integration.store.test_agent_sessions import whole_session
from tests.integration.store.test_live_sessions import whole_live_session


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Store]:
    store = Store.from_url(url)
    try:
        yield store
    finally:
        await store.close()


async def until(condition: Any, within: float = 100.0) -> None:
    """Wait until `await condition()` is true; a Redis that is away meanwhile counts as false."""
    async with asyncio.timeout(within):
        while True:
            try:
                if await condition():
                    return
            except (RedisError, OSError):
                pass
            await asyncio.sleep(0.05)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    one = Server(tmp_path / "redis", 0, *DURABLE)
    one.wait()
    yield one
    one.kill()


# --- one server ---------------------------------------------------------------------------------


async def test_a_password_is_given_and_never_shown(tmp_path: Path) -> None:
    server = Server(tmp_path / "redis", 0, *DURABLE, "--requirepass", "s3cr/t")
    server.wait(password="s3cr/t")
    try:
        url = f"redis://:s3cr%2Ft@127.0.0.1:{server.port}/0"
        async with opened(url) as store:
            await store.check_durability()
        wrong = f"redis://:wr0ng@127.0.0.1:{server.port}/0"
        async with opened(wrong) as store:
            with pytest.raises(AuthenticationError) as refused:
                await store.ping()
        said = cannot_use(Settings(redis_url=wrong), refused.value)
        assert f"redis://:***@127.0.0.1:{server.port}/0" in said
        assert "wr0ng" not in said
    finally:
        server.kill()


async def test_a_unix_socket_is_connected_to(tmp_path: Path) -> None:
    path = tmp_path / "s"
    server = Server(tmp_path / "redis", 0, *DURABLE, "--unixsocket", str(path))
    server.wait()
    try:
        async with opened(f"unix://{path}?db=0") as store:
            await store.check_durability()
            await Scene(store, None).start()
            assert await store.runs.get(RUN) is not None
    finally:
        server.kill()


async def test_tls_accepts_the_ca_that_the_url_names(server: Server, tmp_path: Path) -> None:
    ca, cert, key = certificates(tmp_path / "tls")
    async with tls_in_front_of(server.port, cert, key) as port:
        async with opened(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={ca}") as store:
            await store.check_durability()
            scene = Scene(store, None)
            await scene.start(batch=2)
            assert len((await scene.lease(2)).leases) == 2
        async with opened(f"rediss://127.0.0.1:{port}/0") as store:
            with pytest.raises(ConnectionError, match="certificate verify failed"):
                await store.ping()
        plain = f"rediss://127.0.0.1:{port}/0?ssl_cert_reqs=none&ssl_check_hostname=false"
        async with opened(plain) as store:
            await store.ping()


async def test_scripts_that_redis_forgot_are_loaded_again(server: Server) -> None:
    async with opened(f"redis://127.0.0.1:{server.port}/0") as store:
        scene = Scene(store, None)
        await scene.start(batch=2, eta=9)
        (zero,) = await scene.leased(1)
        with server.client() as client:
            client.script_flush()
        assert await scene.complete(zero)

        server.kill()
        with pytest.raises(ConnectionError):
            await scene.lease(1)
        server.start()
        server.wait()

        # The same client, the same lease, scripts that the new process has never seen.
        (one,) = await scene.leased(1)
        assert one.task == 1
        assert await scene.complete(one)
        groups = await store.trajectories.read(RUN, wait=1)
        assert len(groups) == 2
        await scene.plan(1, groups)
        assert await scene.commit(1) == 2
        audit = await store.ledger.audit(RUN)
        assert (audit.trained, audit.lost, audit.duplicated) == (2, 0, 0)


async def is_blocking(server: Any) -> bool:
    """Return whether a client of this server waits in a call."""
    return int(server.info("clients")["blocked_clients"]) == 1


async def test_a_blocking_read_outlives_a_restart(server: Server) -> None:
    async with opened(f"redis://127.0.0.1:{server.port}/0") as store:
        await Scene(store, None).start()
        waiting = asyncio.create_task(store.events.read(RUN, "$", wait=100))
        with server.client() as client:
            await until(lambda: is_blocking(client))
        server.kill()
        with pytest.raises(ConnectionError):
            await waiting
        server.start()
        server.wait()
        assert [event.kind for event in await store.events.read(RUN, "0")] == ["state"]


# --- a cluster ----------------------------------------------------------------------------------


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[list[Server]]:
    servers = start_cluster(tmp_path / "cluster")
    await until(lambda: cluster_agrees(servers))
    yield servers
    for server in servers:
        server.kill()


def cluster_url(servers: list[Server]) -> str:
    return "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in servers[:2])


@pytest.fixture
def touched(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[int]]:
    """Record the scripts that are run, and how many slots each call of them touches."""
    seen: dict[str, set[int]] = {}
    keys = Scripts.keys

    def watched(self: Scripts, name: str, *arguments: Any) -> list[str]:
        made = keys(self, name, *arguments)
        seen.setdefault(name, set()).add(len({key_slot(key.encode()) for key in made}))
        return made

    monkeypatch.setattr(Scripts, "keys", watched)
    return seen


async def test_every_script_touches_one_slot_of_a_cluster(
    cluster: list[Server], touched: dict[str, set[int]]
) -> None:
    raw = RedisCluster(host="127.0.0.1", port=cluster[0].port)
    async with opened(cluster_url(cluster)) as store:
        await store.check_durability()
        scene = Scene(store, raw)
        await whole_life(scene)
        # Three runs, so that they are on different masters.
        slots = {key_slot(f"{{{run}}}".encode()) * 3 // 16384 for run in (RUN, "r2", "r3")}
        assert len(slots) > 1
    await raw.aclose()
    assert read_scripts().keys() - touched.keys() == set(), "not run here: add them"
    assert {name for name, counts in touched.items() if counts != {1}} == set()


async def whole_life(scene: Scene) -> None:
    """Make every call of all processes to the store at least once."""
    store = scene.store
    assert await store.pools.lock("default", "box:1:1:a", 10) == ""
    assert await store.pools.prolong("default", "box:1:1:a", 10)
    await scene.start(batch=2, eta=9)
    assert (await store.runs.take("default")) is not None
    await store.datasets.append("d", segment(5))
    worker = WorkerRecord(id="w", pool="default", host="h", pid=1, state="idle", run=RUN)
    await store.workers.heartbeat(worker)
    manifest = WeightManifest(
        run=RUN, version=0, lineage="aaa", kind="full", model=f"runs/{RUN}/model",
        files=[WeightFile("w", 1, "0")], tensors=1, created=0.0,
    )  # fmt: skip
    await store.weights.publish(scene.fencing_token, manifest, keep=8)
    assert await store.weights.newest_after(RUN, "0", 1) is not None

    await scene.dataset(3, "held-out")
    token = scene.fencing_token
    for name in ("held-out", "lost"):
        await store.evaluations.ask(RUN, token, request(manifest, name=name))
    await store.evaluations.let(RUN, token, 1)
    given = {"worker": "w", "version": "aaa:0", "busy": False, "ttl": 60.0}
    rows = await store.evaluations.lease(RUN, count=3, **given)  # type: ignore[arg-type]
    await store.evaluations.renew(RUN, "w", [attempt for attempt, _ in rows.rows], 60)
    await store.evaluations.release(RUN, [rows.rows[0][0]], leaves="w")
    again = await store.evaluations.lease(RUN, count=1, **given)  # type: ignore[arg-type]
    for attempt, row in [*rows.rows[1:], *again.rows]:
        answers = answered(row, "correct")
        assert await store.evaluations.complete(RUN, rows.id, attempt, answers)
    assert await store.evaluations.fail(RUN, "000000-lost", "w", "its weights are gone")
    assert len(await store.evaluations.standing(RUN)) == 2
    assert len(await store.evaluations.answers(RUN, rows.id, 3)) == 3
    await store.evaluations.stored(RUN, token, rows.id, 1, [0, 1, 2])
    for one in await store.evaluations.requests(RUN):
        await store.evaluations.close(RUN, token, one.id)

    leases = await scene.leased(7)
    assert await scene.stream_takes(leases[0], 1)
    assert tasks(leases) == [0, 1, 2, 3, 4, 5, 6]
    assert await store.trajectories.in_flight(RUN, "aaa") == {0: 7}
    assert await store.tasks.renew(RUN, [lease.attempt for lease in leases], 60) == []
    judging = {"outside": True, "passes": 1, "max_share": 0.5}
    assert await store.tasks.filter_prompt(RUN, leases[0].attempt, "0", **judging)  # type: ignore[arg-type]
    assert await store.tasks.prompt_filtered(RUN, "0")
    for lease in leases[:4]:
        assert await scene.complete(lease, scene.group(lease))
    assert await store.tasks.drop(RUN, leases[4].attempt, "too_long", "")
    asked = [(leases[5].task, leases[5].attempt), (999, "gone")]
    assert await store.trajectories.needed(RUN, asked) == [True, False]
    assert not await store.tasks.skip(RUN, "gone", "")
    await whole_session(scene, leases[5])
    await whole_live_session(scene)
    chain = ChainRecord(id="chain-00000001", name="c", pool="default", created=1.0, steps=[])
    await store.chains.add(chain)
    assert await store.chains.open() == [chain.id]
    await store.chains.delete(chain.id)
    assert await store.tasks.release(RUN, [leases[5].attempt]) == 0
    assert await store.tasks.set_aside(RUN, leases[5].attempt, "aaa:0", b"") is None
    assert await store.tasks.filter_group(RUN, leases[6].attempt, "", 1.0)
    assert await store.trajectories.filtered(RUN) == (1, 1.0)
    groups = sorted(await store.trajectories.read(RUN, wait=1), key=lambda g: int(g.task[0]))
    await scene.plan(1, groups[:2])
    assert len(await store.trajectories.payloads(RUN, [0, 1])) == 2
    await store.runs.update(RUN, scene.fencing_token, {"step": 1})
    await store.events.add(RUN, "step", {"step": 1})
    edit = RunEdit(key="max_staleness", before=2, after=3, by="k", time=0.0)
    edits = {"edits": [edit.model_dump()]}
    assert await store.run_edits.add(RUN, [], edits, [RunState.RUNNING], {"edits": []}) == ""
    assert [taken.step for taken in await store.run_edits.take(RUN, token, 2)] == [2]
    for attempt in ("a", "b"):
        assert isinstance(await store.idempotency_keys.claim("digest", "r", attempt, "s"), Claim)
        await store.idempotency_keys.release("digest", attempt)
    await store.idempotency_keys.finish("digest", "b", Answered(200, [], b""))
    await store.idempotency_keys.forget("digest", "b")
    assert await scene.commit(1) == 2
    # The run is at this step: nothing is undone.
    await store.runs.go_back(RUN, scene.fencing_token, scene.lineage, 1, "checkpoints/1")
    broken = await scene.raw.xadd(run_key(RUN, "groups"), {"no": "group"})
    assert broken.decode() not in [one.entry for one in await store.trajectories.pending(RUN)]
    await store.trajectories.read(RUN, wait=0.01)
    await store.trajectories.requeue(RUN, scene.fencing_token, [groups[2].entry], limit=3)
    why = await store.insight.situation(await store.runs.get(RUN))  # type: ignore[arg-type]
    assert (why.flow.waiting, why.flow.returned) == (1, 2)
    assert [one.id for one in why.workers] == ["w"]
    assert RUN in [part.name async for part in store.dumps.read()]

    await store.runs.cancel(RUN)
    await store.runs.finish(
        RUN, "default", "cancelled", "on request", fencing_token=scene.fencing_token
    )
    for run in ("r2", "r3"):
        await store.runs.submit(record(run, batch=2, eta=9, resume_from=RUN))
    audit = await store.ledger.audit("r2")
    assert (audit.trained, audit.in_flight, audit.dropped) == (
        (2, 3, {"filtered_group": 1, "too_long": 1})
    )
    assert (audit.lost, audit.duplicated) == (0, 0)
    assert {run.id for run in await store.runs.all()} == {RUN, "r2", "r3"}
    await store.runs.cancel("r3")
    await store.runs.mark_deleting("r3")
    assert await store.runs.free(record("r3"))
    await store.recovery.recover("r2", 9, "checkpoints/9", "lost", [], {}, [], [])
    await store.runs.delete("r3")
    assert {run.id for run in await store.runs.all()} == {RUN, "r2"}
    await store.datasets.delete("held-out")
    await store.workers.remove("default", "w")
    await store.pools.unlock("default", "box:1:1:a")


async def test_a_master_that_restarts_is_waited_for(cluster: list[Server]) -> None:
    async with opened(cluster_url(cluster)) as store:
        scene = Scene(store, None)
        await scene.start(batch=2, eta=9)
        (lease,) = await scene.leased(1)
        holder = key_slot(f"{{{RUN}}}".encode()) * 3 // 16384
        cluster[holder].kill()
        with pytest.raises(ConnectionError):
            await scene.complete(lease)
        cluster[holder].start()

        await until(lambda: handed_in(scene, lease))
        assert len(await store.trajectories.read(RUN, wait=1)) == 1


async def handed_in(scene: Scene, lease: Lease) -> bool:
    """Return whether the group is in the stream. A call that is repeated because its reply was lost
    sees an ended attempt."""
    taken = await scene.complete(lease)
    return taken or len(await scene.store.trajectories.read(RUN, wait=1)) == 1


# --- Sentinel -----------------------------------------------------------------------------------


async def test_a_failover_is_followed(tmp_path: Path) -> None:
    master = Server(tmp_path / "master", 0, *DURABLE)
    master.wait()
    replica = Server(
        tmp_path / "replica", 0, *DURABLE, "--replicaof", "127.0.0.1", str(master.port),
        "--repl-diskless-sync-delay", "0",
    )  # fmt: skip
    config = tmp_path / "sentinel.conf"
    config.write_text(
        f"sentinel monitor mine 127.0.0.1 {master.port} 1\n"
        "sentinel down-after-milliseconds mine 3000\n"
        "sentinel failover-timeout mine 4000\n"
        "bind 127.0.0.1\n"
    )
    sentinel = Server(tmp_path / "sentinel", 0, str(config), "--sentinel")
    servers = (master, replica, sentinel)
    try:
        for server in servers:
            server.wait()
        url = f"redis+sentinel://127.0.0.1:1,127.0.0.1:{sentinel.port}/mine/0"
        async with opened(url) as store:
            await until(lambda: answers(store))
            await store.check_durability()
            scene = Scene(store, None)
            await scene.start(batch=2, eta=9)
            (lease,) = await scene.leased(1, ttl=10 * MINUTE)
            with master.client() as client:
                # Any failover loses writes that were acknowledged and not replicated. WAIT is about
                # its own connection's writes: what is written here comes after the others.
                client.set("last", 1)
                assert client.wait(1, 60_000) == 1
            with sentinel.client() as client:
                await until(lambda: known_replica(client))

            master.kill()

            await until(lambda: handed_in(scene, lease))
            with replica.client() as client:
                assert client.role()[0] in (b"master", "master")
            assert len(await store.trajectories.read(RUN, wait=1)) == 1
    finally:
        for server in servers:
            server.kill()


async def answers(store: Store) -> bool:
    await store.ping()
    return True


async def known_replica(sentinel: Any) -> bool:
    return len(sentinel.sentinel_slaves("mine")) == 1
