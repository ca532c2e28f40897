"""Live sessions in the store: rewarded late, and completed once, even if workers die or sleep."""

import time

from services.contracts.groups.payload import Owner, owner_of, payload_name
from services.contracts.sessions import Call, Reward, SampledTurn, live_id, session_of
from services.store.agents.calls import Claimed
from services.store.agents.live import LiveCounts, LiveSession
from services.store.keys import run_key, sessions_key
from services.store.runs.audit import audit
from tests.integration.store.scene import RUN, Scene, record
from tests.integration.store.test_agent_sessions import turn

GOOD = Reward(reward=1.0)
LIVE = {"data": {"source": "sessions", "dataset": ""}}


async def start(scene: Scene, batch: int = 2, eta: int = 1) -> None:
    """Make a run without a dataset, and its learner."""
    given = record(RUN, batch=batch, eta=eta)
    await scene.store.runs.submit(given.model_copy(update={"config": given.config | LIVE}))
    await scene.take_over("aaa")


async def open_one(
    scene: Scene, id: str, idle: float = 60, reward: float = 60, most: int = 9
) -> str:
    session = LiveSession(time.time(), idle, reward, 9, "refunds", id)
    return await scene.store.live_sessions.open(RUN, id, session, f"key of {id}", most)


async def play(scene: Scene, id: str) -> None:
    """Play one turn."""
    call = Call(kind="chat")
    assert await scene.store.agent_sessions.call(RUN, id, 0, "one", call) == "waiting"
    (claimed,) = await scene.store.agent_calls.claim(RUN, "w", 10)
    assert await scene.store.agent_calls.renew(RUN, "w", 60, [claimed.id]) == []
    assert await record_turn(scene, claimed)


async def record_turn(scene: Scene, claimed: Claimed) -> bool:
    calls = scene.store.agent_calls
    sampled = SampledTurn(turn("hi"), "after", None, ("aaa", 0))
    return await calls.record_turn(RUN, "w", claimed, sampled) is not None


async def played(scene: Scene, *ids: str, reward: Reward | None = None) -> None:
    """Make sessions of one turn that have ended."""
    for id in ids:
        assert await open_one(scene, id) == ""
        await play(scene, id)
        assert await scene.store.live_sessions.end(RUN, id) == ""
        if reward is not None:
            assert await scene.store.live_sessions.reward(RUN, id, reward) == reward


async def whole_live_session(scene: Scene) -> None:
    """Make every call about a live session once; one session stays open."""
    await played(scene, "la", reward=GOOD)
    assert await open_one(scene, "lb") == ""
    await pass_deadline(scene, "sessions_open", "lb", 60)
    assert await scene.store.live_sessions.sweep(RUN) == 1
    assert await open_one(scene, "lc") == ""
    assert await scene.store.live_sessions.refused(RUN, "lb.t") == (0, False)
    assert await now(scene) == (1, 0, 1, 1)
    assert await scene.store.live_sessions.find(RUN, "lc") is not None


async def now(scene: Scene) -> tuple[int, int, int, int]:
    """Return how many sessions are open, wait, are ready, and were discarded."""
    counts: LiveCounts = await scene.store.live_sessions.counts(RUN)
    return counts.open, counts.waiting, counts.ready, counts.discarded


async def pass_deadline(scene: Scene, part: str, id: str, seconds: float) -> None:
    """Move the deadline of an open or waiting session back by `seconds`."""
    key = run_key(RUN, part)
    score = await scene.raw.zscore(key, id)
    await scene.raw.zadd(key, {id: score - 1000 * seconds})
    if ended := await scene.raw.hget(sessions_key(RUN, id), "ended"):
        await scene.raw.hset(sessions_key(RUN, id), "ended", int(ended) - int(1000 * seconds))


async def test_a_live_session_cannot_be_released_as_a_group(scene: Scene) -> None:
    await start(scene)
    await open_one(scene, "la")
    assert not await scene.store.agent_sessions.release_group(RUN, "la")
    await play(scene, "la")


async def test_a_session_holds_no_task_until_its_reward_has_come(scene: Scene) -> None:
    await start(scene)
    await played(scene, "la")
    assert await now(scene) == (0, 1, 0, 0)
    assert (await scene.lease(9)).refusal == "unready"
    live = scene.store.live_sessions
    assert await live.reward(RUN, "la", GOOD) == GOOD
    # The first reward counts, also after completion.
    assert await live.reward(RUN, "la", Reward(reward=0.0)) == GOOD
    assert await now(scene) == (0, 0, 1, 0)
    (lease,) = (await scene.lease(9)).leases
    assert (session_of(lease.attempt), lease.position.row(seed=3)) == ("la", 0)
    assert (await scene.lease(9)).refusal == "unready"
    assert await scene.complete(lease)
    assert await live.reward(RUN, "la", Reward(reward=0.0)) == GOOD
    assert await live.end(RUN, "la") == ""
    assert await now(scene) == (0, 0, 0, 0)


async def test_a_session_is_completed_once_although_workers_die(scene: Scene) -> None:
    await start(scene)
    await played(scene, "la", reward=GOOD)
    first = await scene.leased(1)
    await scene.lapse(*first)
    # Another worker gets it, with the same task.
    second = await scene.leased(1)
    assert second[0].position == first[0].position
    # The first worker wakes. All its calls are refused.
    assert await scene.store.tasks.renew(RUN, [first[0].attempt], 60) == [first[0].attempt]
    assert not await scene.complete(first[0])
    assert not await scene.store.tasks.drop(RUN, first[0].attempt, "refused", "")
    assert not await scene.store.tasks.filter_group(RUN, first[0].attempt, "", 1.0)
    assert await scene.store.tasks.release(RUN, [first[0].attempt]) == 0
    assert (await scene.lease(9)).refusal == "unready"
    # Its turns stay until another worker has completed it; then they are gone at once.
    assert len((await scene.store.agent_sessions.played(RUN, "la", 1) or [])[0].turns) == 1
    assert await scene.complete(second[0])
    assert not await scene.complete(first[0])
    assert await scene.store.agent_sessions.played(RUN, "la", 1) is None
    assert await scene.raw.hget(sessions_key(RUN, "la"), "state") == b"completed"
    assert not await scene.raw.hexists(sessions_key(RUN, "la"), "turn:0:0")
    assert 0 < await scene.raw.ttl(sessions_key(RUN, "la")) <= 3600
    assert (await scene.lease(9)).refusal == "unready"
    await played(scene, "lb", reward=GOOD)
    (third,) = await scene.leased(1)
    assert third.task == first[0].task + 1
    assert await scene.store.tasks.drop(RUN, third.attempt, "refused", "")
    assert await scene.raw.hget(sessions_key(RUN, "lb"), "state") == b"failed"
    assert (await scene.lease(9)).refusal == "unready"
    # Two tasks were dropped or lapsed in a row, and the run goes on.
    run = await scene.store.runs.get(RUN)
    assert run is not None
    assert not run.state.final


async def test_admission_limits_leases_of_ready_sessions(scene: Scene) -> None:
    await start(scene, batch=1, eta=0)
    await played(scene, "la", "lb", reward=GOOD)
    (lease,) = (await scene.lease(9)).leases
    assert (await scene.lease(9)).refusal == "admission"
    assert await scene.complete(lease)
    (group,) = await scene.store.trajectories.read(RUN, wait=1)
    # It waited too long for its reward: dropped at once, and counted.
    dropped = await scene.store.trajectories.requeue(
        RUN, scene.fencing_token, [group.entry], limit=1
    )
    assert dropped == 1
    (other,) = (await scene.lease(9)).leases
    assert (session_of(other.attempt), other.task) == ("lb", lease.task + 1)
    found = audit([await scene.store.ledger.generation(RUN)])
    assert (found.dropped, found.lost, found.duplicated) == ({"too_slow": 1}, 0, 0)


async def test_a_session_without_a_reward_is_discarded_at_its_deadline(scene: Scene) -> None:
    await start(scene)
    await played(scene, "la", "lb")
    live = scene.store.live_sessions
    await pass_deadline(scene, "sessions_waiting", "la", 59)
    assert await live.sweep(RUN) == 0
    await pass_deadline(scene, "sessions_waiting", "la", 1)
    # The same before a sweep.
    assert await live.reward(RUN, "la", GOOD) == "unrewarded"
    assert await now(scene) == (0, 1, 0, 1)
    await pass_deadline(scene, "sessions_waiting", "lb", 60)
    assert await live.sweep(RUN) == 1
    assert await live.sweep(RUN) == 0
    assert await live.reward(RUN, "lb", GOOD) == "unrewarded"
    assert await scene.store.agent_sessions.call(RUN, "lb", 0, "x", Call(kind="chat")) == (
        "unrewarded"
    )
    assert await now(scene) == (0, 0, 0, 2)
    # All its turns are deleted.
    assert await scene.raw.hlen(sessions_key(RUN, "lb")) == 3


async def test_an_idle_session_ends_by_itself_and_waits_for_its_reward(scene: Scene) -> None:
    await start(scene)
    live = scene.store.live_sessions
    for id in ("la", "lb", "lc", "ld"):
        assert await open_one(scene, id) == ""
        await play(scene, id)
    assert await live.reward(RUN, "ld", GOOD) == GOOD
    for id in ("la", "lb", "ld"):
        await pass_deadline(scene, "sessions_open", id, 60)
    # The same before a sweep.
    assert await live.reward(RUN, "la", GOOD) == GOOD
    assert await scene.store.agent_sessions.call(RUN, "lb", 0, "x", Call(kind="chat")) == "lapsed"
    assert await live.sweep(RUN) == 2
    assert await now(scene) == (1, 1, 2, 0)
    assert await scene.store.agent_sessions.call(RUN, "lb", 0, "x", Call(kind="chat")) == "ended"
    assert await live.reward(RUN, "lb", GOOD) == GOOD
    # A session that was rewarded before its end goes on.
    assert await live.reward(RUN, "lc", GOOD) == GOOD
    assert await scene.store.agent_sessions.call(RUN, "lc", 0, "x", Call(kind="chat")) == "waiting"
    assert await live.end(RUN, "lc") == ""
    assert await scene.store.agent_calls.claim(RUN, "w", 10) == []
    assert await now(scene) == (0, 0, 4, 0)


async def test_a_session_without_a_usable_reward_or_a_turn_is_discarded(scene: Scene) -> None:
    await start(scene)
    live = scene.store.live_sessions
    broke = Reward(error="the tool broke")
    await played(scene, "la", reward=broke)
    assert await open_one(scene, "lb") == ""
    assert await live.end(RUN, "lb") == ""
    assert await now(scene) == (0, 0, 0, 2)
    assert await live.reward(RUN, "la", GOOD) == broke
    assert await live.reward(RUN, "lb", GOOD) == "unrewarded"
    assert await live.reward(RUN, "lx", GOOD) == "gone"
    assert await live.end(RUN, "lx") == "gone"


async def test_a_runs_sessions_are_limited_in_number(scene: Scene) -> None:
    await start(scene)
    live = scene.store.live_sessions
    await played(scene, "la", reward=GOOD)
    await played(scene, "lb")
    assert await open_one(scene, "lc", most=3) == ""
    assert await open_one(scene, "ld", most=3) == "full"
    # The same request again opens nothing, and gets a new key.
    session = LiveSession(time.time(), 60, 60, 9, "", "c")
    assert await live.open(RUN, "lc", session, "other", 3) == "again"
    assert await live.open(RUN, "lb", session, "other", 3) == "again"
    assert await scene.store.agent_sessions.key_of(RUN, "lc", 0) == "other"
    assert await live.open(RUN, "la", session, "other", 3) == "ended"
    found = await live.find(RUN, "lc")
    assert found is not None
    assert (found.prompt_key, found.reward, found.name) == ("refunds", 60, "lc")
    assert (await live.counts(RUN)).opened == 3


async def test_a_live_sessions_turns_are_limited_in_bytes(scene: Scene) -> None:
    await start(scene)
    session = LiveSession(time.time(), 60, 60, 9, "", "la")
    assert await scene.store.live_sessions.open(RUN, "la", session, "key", 9, max_bytes=50) == ""
    await play(scene, "la")
    asked = await scene.store.agent_sessions.call(RUN, "la", 0, "two", Call(kind="chat"))
    assert asked == "full"


async def test_sessions_of_a_run_that_is_over_are_lost(scene: Scene) -> None:
    await start(scene)
    live = scene.store.live_sessions
    assert await open_one(scene, "la", reward=9999) == ""
    await play(scene, "la")
    assert await live.end(RUN, "la") == ""
    assert await open_one(scene, "lb", reward=9999) == ""
    # The gateway read the run before it was cancelled, or had ended.
    await scene.store.runs.set_state(RUN, "cancelling", "")
    assert await open_one(scene, "lc") == "run"
    await scene.store.runs.finish(RUN, "default", "cancelled", "")
    assert await open_one(scene, "lc") == "run"
    for id in ("la", "lb"):
        assert 0 < await scene.raw.ttl(sessions_key(RUN, id)) <= 3600
    assert await live.reward(RUN, "la", GOOD) == "lapsed"
    assert await live.end(RUN, "lb") == "lapsed"
    assert await scene.store.agent_sessions.call(RUN, "lb", 0, "x", Call(kind="chat")) == "lapsed"
    assert await now(scene) == (0, 0, 0, 0)
    # Their numbers stay known.
    counts = await live.counts(RUN)
    assert (counts.open, counts.waiting, counts.ready, counts.opened) == (0, 0, 0, 2)


async def test_a_backup_leaves_out_live_sessions(scene: Scene) -> None:
    await start(scene)
    await played(scene, "la", reward=GOOD)
    await played(scene, "lb")
    assert await open_one(scene, "lc") == ""
    (run,) = [part async for part in scene.store.dumps.read() if part.name == RUN]
    assert not [key for key in (*run.dumps, *run.hashes) if ":sessions" in key]


async def test_a_refused_session_is_leased_after_the_others(scene: Scene) -> None:
    await start(scene)
    await played(scene, "la", "lb", reward=GOOD)
    live = scene.store.live_sessions
    (first,) = await scene.leased(1)
    assert session_of(first.attempt) == "la"
    # An attempt counts once, also if its reply was lost.
    assert [await live.refused(RUN, first.attempt) for _ in range(2)] == [(1, False)] * 2
    await scene.store.tasks.release(RUN, [first.attempt])
    other, again = await scene.leased(2)
    assert [session_of(one.attempt) for one in (other, again)] == ["lb", "la"]
    # The first attempt is no longer held, and an ended session stays ended.
    assert await live.refused(RUN, first.attempt) == (0, False)
    assert await live.refused(RUN, "lx.t") == (0, False)
    assert await now(scene) == (0, 0, 2, 0)


async def test_a_refusal_says_whether_other_groups_were_accepted_since(scene: Scene) -> None:
    await start(scene)
    await played(scene, "la", "lb", "lc", reward=GOOD)
    live = scene.store.live_sessions
    before, refused, after = await scene.leased(3)
    assert await scene.complete(before)
    # Completions before the refusal do not count.
    assert await live.refused(RUN, refused.attempt) == (1, False)
    assert await scene.complete(after)
    assert await live.refused(RUN, refused.attempt) == (1, True)


async def test_the_payload_of_a_session_has_a_name_that_is_read_back(scene: Scene) -> None:
    await start(scene)
    await played(scene, live_id(""), reward=GOOD)
    (lease,) = await scene.leased(1)
    owner = Owner(RUN, lease.task, lease.attempt)
    assert owner_of(payload_name(owner, "0" * 16)) == owner
