"""Sessions of agents in the store: turns are recorded once, under one attempt's lease."""

import time
from typing import Any, cast

import pytest

from services.contracts.rows.dataset import Row
from services.contracts.sessions import (
    Call,
    Reward,
    SampledTurn,
    SessionName,
    Turn,
    call_id,
    packed,
)
from services.gateway.openai.errors import SessionProblem
from services.gateway.sessions.responses import Responses
from services.store.agents.calls import Claimed
from services.store.agents.sessions import AT_ONCE, Opened
from services.store.keys import responses_key, sessions_key
from services.store.work.tasks import Lease
from tests.integration.store.scene import RUN, Scene


def turn(text: str, parent: int = -1) -> Turn:
    return Turn(
        parent=parent,
        added=packed([1, 2]),
        token_ids=packed([3]),
        logprobs=packed([-0.5], "<f4"),
        versions=[("aaa:0", 0, 1)],
        finish_reason="stop",
        message={"role": "assistant", "content": text},
        prompt_tokens=2,
        created=1,
    )


async def opened(
    scene: Scene, samples: int = 2, max_turns: int = 9, max_bytes: int = 1 << 20
) -> Lease:
    await scene.start(eta=1)
    (lease,) = await scene.leased(1)
    about = Opened(str(lease.position), 0, samples, time.time(), 60.0, max_turns)
    keys = [f"key{index}" for index in range(samples)]
    await scene.store.agent_sessions.open(RUN, lease.attempt, about, keys, max_bytes=max_bytes)
    return lease


async def ask(
    scene: Scene, lease: Lease, digest: str, path: tuple[int, ...] = (), index: int = 0
) -> str:
    call = Call(kind="chat", path=list(path))
    return await scene.store.agent_sessions.call(RUN, lease.attempt, index, digest, call)


async def claim(scene: Scene, worker: str = "w", held: int = 0) -> list[Claimed]:
    return await scene.store.agent_calls.claim(RUN, worker, 10, held, 8)


async def answer(scene: Scene, claimed: Claimed, text: str = "hi", worker: str = "w") -> bool:
    after = f"after {claimed.digest}"
    made = turn(text, claimed.call.path[-1] if claimed.call.path else -1)
    sampled = SampledTurn(made, after, None, ("aaa", 0))
    recorded = await scene.store.agent_calls.record_turn(RUN, worker, claimed, sampled)
    return recorded is not None


async def last_turns(
    scene: Scene, lease: Lease, *digests: str
) -> tuple[list[int | None], list[int]]:
    """Return the last turns of the conversations that these requests have led to, and all
    parents."""
    known = await scene.store.agent_sessions.known(
        RUN, lease.attempt, 0, "new", [f"after {digest}" for digest in digests]
    )
    assert (known.answered, known.over) == (False, "")
    return known.turns, known.parents


async def whole_session(scene: Scene, lease: Lease) -> None:
    """Make every call about a session once; the attempt stays held."""
    sessions, attempt = scene.store.agent_sessions, lease.attempt
    about = Opened(str(lease.position), 0, 1, time.time(), 60.0, 9)
    await sessions.open(RUN, attempt, about, ["key"])
    assert await sessions.key_of(RUN, attempt, 0) == "key"
    assert await sessions.reopen(RUN, attempt, "mine", ["other"]) == ""
    assert not await sessions.release_group(RUN, "another")
    assert await ask(scene, lease, "one") == "waiting"
    assert await sessions.answer_of(RUN, attempt, 0, "one") is None
    (claimed,) = await claim(scene)
    assert await scene.store.agent_calls.renew(RUN, "w", 60, [claimed.id]) == []
    await scene.store.agent_calls.release(RUN, "w", [claimed.id])
    (claimed,) = await claim(scene)
    assert await answer(scene, claimed)
    assert await sessions.turns(RUN, attempt, 0, [0]) == [turn("hi")]
    assert (await sessions.known(RUN, attempt, 0, "one", ["after one"])).turns == [0]
    assert await sessions.lengths(RUN, attempt, 0) == []
    assert await sessions.reward(RUN, attempt, 0, Reward(reward=1.0)) == Reward(reward=1.0)
    await every_call_about_responses(scene, SessionName(RUN, attempt, 0))
    assert await sessions.end(RUN, attempt, 0) == ""
    assert len((await scene.store.agent_calls.news("asked", RUN, "0", 0.01))[1]) == 3
    assert len((await scene.store.agent_calls.news("ended", RUN, "0", 0.01))[1]) == 1
    await sessions.close(RUN, attempt, "completed")


async def every_call_about_responses(scene: Scene, session: SessionName) -> None:
    """Keep two responses of one conversation of a session."""
    kept, sessions = scene.store.kept_responses, sessions_key(session.run, session.attempt)
    assert await kept.keep(session, {"conversation:c": b"c"}, "c", "", "") == "kept"
    before = int(await scene.store._redis.hget(sessions, "bytes:0"))
    for _ in range(2):  # a repeated request
        assert await kept.first(session, "tried:k", "") == ""
        entries = {"talk:t": b"four", "response:r": b"five5"}
        assert await kept.keep(session, entries, "c", "", "t") == "kept"
    assert int(await scene.store._redis.hget(sessions, "bytes:0")) == before + len(b"fourfive5")
    # A request that began at the same place.
    assert await kept.keep(session, {"talk:u": b"u"}, "c", "", "u") == "elsewhere"
    assert await kept.keep(session, {"talk:v": b"v"}, "c", "", "v", are_items=True) == "elsewhere"
    assert await kept.first(session, "tried:k", "t") == ""
    assert await kept.present(session, ["talk:t", "talk:x"]) == [True, False]
    assert await kept.forget(session, "response:r", "conversation:c")
    assert not await kept.forget(session, "response:r")
    assert await kept.entries(session) == {
        "talk:t": b"four", "talk:u": b"u", "end:c": b"t", "tried:k": b"",
    }  # fmt: skip
    assert await scene.store._redis.pttl(responses_key(*session)) > 3_500_000


async def test_streams_list_the_calls_that_wait_and_that_have_ended(scene: Scene) -> None:
    lease = await opened(scene)
    await ask(scene, lease, "one")
    await answer(scene, (await claim(scene))[0])
    # The worker of the last turn may begin the next turn before it claims the call.
    await ask(scene, lease, "two", (0,))
    one, two = (call_id(lease.attempt, 0, digest) for digest in ("one", "two"))
    assert (await scene.store.agent_calls.news("asked", RUN, "0", 0.01))[1] == [
        (one, ""),
        (two, "w"),
    ]
    assert (await scene.store.agent_calls.news("ended", RUN, "0", 0.01))[1] == [(one, "")]
    assert [found.id for found in await scene.store.agent_calls.asked(RUN, [one, two])] == [two]
    assert [found.id for found in await claim(scene, "other")] == []
    assert [found.id for found in await claim(scene)] == [two]


async def test_a_repeated_request_gets_the_recorded_answer(scene: Scene) -> None:
    lease = await opened(scene)
    assert await ask(scene, lease, "one") == "waiting"
    assert await ask(scene, lease, "one") == "waiting"
    (claimed,) = await claim(scene)
    assert await claim(scene) == []
    assert await answer(scene, claimed)
    assert await answer(scene, claimed, "again")
    assert await ask(scene, lease, "one") == "answered"
    recorded = await scene.store.agent_sessions.answer_of(RUN, lease.attempt, 0, "one")
    assert recorded == turn("hi")
    assert await last_turns(scene, lease, "one", "two") == ([0, None], [-1])
    assert await ask(scene, lease, "other session", index=1) == "waiting"


async def test_calls_of_one_session_are_worked_on_at_once_and_become_branches(
    scene: Scene,
) -> None:
    lease = await opened(scene)
    await ask(scene, lease, "one")
    await answer(scene, (await claim(scene))[0])
    for digest in ("left", "right"):
        assert await ask(scene, lease, digest, (0,)) == "waiting"
    left, right = await claim(scene)
    # The call that is answered first is the next turn.
    assert await answer(scene, right)
    assert await ask(scene, lease, "left", (0,)) == "waiting"
    assert await answer(scene, left)
    assert await last_turns(scene, lease, "left", "right") == ([2, 1], [-1, 0, 0])
    (played, _) = await scene.store.agent_sessions.played(RUN, lease.attempt, 2) or []
    assert len(played.turns) == 3
    assert await claim(scene) == []


async def test_a_sessions_turns_are_limited_in_number(scene: Scene) -> None:
    lease = await opened(scene, max_turns=2)
    await ask(scene, lease, "one")
    await answer(scene, (await claim(scene))[0])
    assert await ask(scene, lease, "two") == "waiting"
    # An agent that is told so ends as it would anywhere; it cannot ask for ever.
    told = [await ask(scene, lease, "three") for _ in range(9)]
    assert told == ["spent"] * 8 + ["full"]
    (spent, fresh) = await scene.store.agent_sessions.played(RUN, lease.attempt, 2) or []
    assert (spent.spent, fresh.spent) == (True, False)
    assert await ask(scene, lease, "two") == "waiting"
    assert await ask(scene, lease, "one") == "answered"
    other = await opened_at_once(scene, lease)
    assert other == ["waiting"] * AT_ONCE + ["busy"]


async def test_a_sessions_turns_are_limited_in_bytes(scene: Scene) -> None:
    lease = await opened(scene, max_bytes=1000)
    for digest in ("one", "two"):
        assert await ask(scene, lease, digest) == "waiting"
        await answer(scene, (await claim(scene))[0], "x" * 600)
    assert await ask(scene, lease, "three") == "spent"
    # Earlier answers stay, and other sessions have bytes of their own.
    assert await ask(scene, lease, "one") == "answered"
    assert await ask(scene, lease, "three", index=1) == "waiting"


async def opened_at_once(scene: Scene, lease: Lease) -> list[str]:
    """Return the replies to more calls of a session than may wait at once."""
    about = Opened(str(lease.position), 0, 2, time.time(), 60.0, 1000)
    await scene.store.agent_sessions.open(RUN, lease.attempt, about, ["a", "b"])
    return [await ask(scene, lease, f"call{n}", index=1) for n in range(AT_ONCE + 1)]


async def test_only_the_worker_that_recorded_a_turn_learns_its_number(scene: Scene) -> None:
    lease = await opened(scene)
    for number, digest in enumerate(("one", "two")):
        await ask(scene, lease, digest)
        (claimed,) = await claim(scene)
        sampled = SampledTurn(turn(digest), f"after {digest}", None, ("aaa", 0))
        place = (RUN, "w", claimed, sampled)
        assert await scene.store.agent_calls.record_turn(*place) == number
        # The turn may differ from the one that another worker has recorded.
        assert await scene.store.agent_calls.record_turn(*place) == -1


async def test_each_length_of_a_text_is_listed_once(scene: Scene) -> None:
    lease = await opened(scene)
    sessions = scene.store.agent_sessions
    for digest, length in (("one", 12), ("two", 7), ("three", 12)):
        await ask(scene, lease, digest)
        (claimed,) = await claim(scene)
        place = (RUN, "w", claimed, SampledTurn(turn("hi"), digest, length, ("aaa", 0)))
        assert await scene.store.agent_calls.record_turn(*place) is not None
    assert await sessions.lengths(RUN, lease.attempt, 0) == [7, 12]


async def test_a_call_of_a_dead_worker_goes_to_another_and_only_one_answer_counts(
    scene: Scene,
) -> None:
    lease = await opened(scene)
    await ask(scene, lease, "one")
    (lost,) = await claim(scene, "dead")
    sessions = scene.store.agent_sessions
    assert await scene.store.agent_calls.renew(RUN, "dead", 60, [lost.id]) == []
    await scene.store.agent_calls.release(RUN, "dead", [lost.id])
    (taken,) = await claim(scene, "living")
    assert await scene.store.agent_calls.renew(RUN, "dead", 60, [lost.id]) == [lost.id]
    assert await answer(scene, taken, "living", "living")
    await answer(scene, lost, "dead", "dead")
    found = await sessions.answer_of(RUN, lease.attempt, 0, "one")
    assert isinstance(found, Turn)
    assert found.message["content"] == "living"


async def first_worker(scene: Scene, lease: Lease, digest: str, index: int) -> str:
    """Return the worker that may claim this waiting call before others."""
    name = call_id(lease.attempt, index, digest)
    found = await scene.raw.hget(f"headrace:{{{RUN}}}:calls", f"{name}:worker")
    return str(found.decode())


async def test_a_session_stays_on_its_worker_and_a_new_one_goes_to_the_least_busy(
    scene: Scene,
) -> None:
    lease = await opened(scene, samples=5)
    loads = f"headrace:{{{RUN}}}:calls_load"

    async def asked(index: int, digest: str = "one", path: tuple[int, ...] = ()) -> str:
        # Keep the workers' entries fresh, however long this test takes.
        for worker, load in (await scene.raw.hgetall(loads)).items():
            held, at_once, _ = load.split()
            await scene.raw.hset(loads, worker, b"%s %s 9000000000000" % (held, at_once))
        assert await ask(scene, lease, digest, path, index) == "waiting"
        return await first_worker(scene, lease, digest, index)

    # Before any worker asks for calls, any worker may claim it.
    assert await asked(0) == ""
    (one,) = await claim(scene, "busy", held=3)
    await claim(scene, "idle", held=2)
    assert await answer(scene, one, worker="busy")

    # The calls that wait for a worker count as its load.
    assert [await asked(index) for index in (1, 2, 3)] == ["idle", "idle", "busy"]
    # Another session of the group is on the other worker.
    assert await asked(0, "two", (0,)) == "busy"
    assert await asked(0, "three", (0,)) == "busy"
    assert await asked(4) == "idle"

    # It no longer asks for calls.
    await scene.raw.hset(loads, "busy", "0 8 1")
    assert await ask(scene, lease, "four", (0,)) == "waiting"
    assert await first_worker(scene, lease, "four", 0) == "idle"
    assert await scene.raw.hkeys(loads) == [b"idle"]


async def test_other_workers_claim_a_call_after_the_head_start_of_its_worker(scene: Scene) -> None:
    lease = await opened(scene)
    await ask(scene, lease, "one")
    calls, due = (f"headrace:{{{RUN}}}:{name}" for name in ("calls", "calls_due"))
    (member,) = await scene.raw.zrange(due, 0, -1)
    # A busy machine may take half a second between two calls.
    while True:
        seconds, micros = await scene.raw.time()
        began = time.monotonic()
        await scene.raw.zadd(due, {member: seconds * 1000 + micros // 1000})
        await scene.raw.hset(calls, member + b":worker", b"first")
        claimed = await claim(scene, "other")
        if time.monotonic() - began < 0.4:
            break
    assert claimed == []
    await scene.raw.zadd(due, {member: seconds * 1000 - 1000})
    assert len(await claim(scene, "other")) == 1


async def test_failed_calls_of_a_session_are_limited(scene: Scene) -> None:
    lease = await opened(scene, max_turns=1)
    for number in range(4):
        assert await ask(scene, lease, f"refused{number}") == "waiting"
        (claimed,) = await claim(scene)
        assert await scene.store.agent_calls.fail(RUN, "w", claimed, {"status": 400})
    assert await ask(scene, lease, "one more") == "full"


async def test_the_same_request_retries_a_failed_call(scene: Scene) -> None:
    lease = await opened(scene)
    await ask(scene, lease, "one")
    (claimed,) = await claim(scene)
    sessions = scene.store.agent_sessions
    assert await scene.store.agent_calls.fail(RUN, "w", claimed, {"status": 400})
    assert await sessions.answer_of(RUN, lease.attempt, 0, "one") == {"status": 400}
    assert await ask(scene, lease, "one") == "waiting"
    assert await sessions.answer_of(RUN, lease.attempt, 0, "one") is None


async def test_the_first_reward_counts_and_the_last_end_completes_the_group(scene: Scene) -> None:
    lease = await opened(scene)
    sessions = scene.store.agent_sessions
    first = Reward(reward=1.0)
    assert await sessions.reward(RUN, lease.attempt, 0, first) == first
    assert await sessions.reward(RUN, lease.attempt, 0, Reward(reward=0.0)) == first
    assert await sessions.end(RUN, lease.attempt, 0) == ""
    assert await ask(scene, lease, "late") == "ended"
    assert [await sessions.over(RUN, lease.attempt, index) for index in (0, 1)] == ["ended", ""]
    assert await claim(scene) == []
    for digest in ("one", "two"):
        await ask(scene, lease, digest, index=1)
    assert await sessions.end(RUN, lease.attempt, 1) == ""
    assert await sessions.end(RUN, lease.attempt, 1) == ""
    (claimed,) = await claim(scene)
    assert claimed.call.kind == "finish"
    about = await sessions.opened(RUN, lease.attempt)
    assert about is not None
    played = await sessions.played(RUN, lease.attempt, 2)
    assert [one.reward for one in played or []] == [first, None]
    assert await scene.complete(lease)
    # The reply may be lost, or another worker was faster: late calls change nothing.
    assert await sessions.played(RUN, lease.attempt, 2) is None
    await sessions.close(RUN, lease.attempt, "lapsed")
    assert await sessions.answer_of(RUN, lease.attempt, 0, "other") == "completed"
    assert await claim(scene) == []
    assert await scene.raw.zcard(f"headrace:{{{RUN}}}:calls_due") == 0


async def test_a_released_group_is_leased_again_and_takes_no_more_calls(scene: Scene) -> None:
    lease = await opened(scene)
    sessions = scene.store.agent_sessions
    await ask(scene, lease, "one")
    (claimed,) = await claim(scene)
    await ask(scene, lease, "two", index=1)
    assert not await sessions.release_group(RUN, "another")
    for _ in range(2):  # the reply may be lost
        assert await sessions.release_group(RUN, lease.attempt)
    assert not await answer(scene, claimed)
    assert await claim(scene) == []
    assert await scene.raw.zcard(f"headrace:{{{RUN}}}:calls_due") == 0
    assert await ask(scene, lease, "three") == "released"
    assert await sessions.end(RUN, lease.attempt, 0) == "released"
    (again,) = await scene.leased(1)
    assert (again.position, again.attempt != lease.attempt) == (lease.position, True)


async def test_a_group_whose_sessions_have_ended_cannot_be_released(scene: Scene) -> None:
    lease = await opened(scene)
    for index in (0, 1):
        await scene.store.agent_sessions.end(RUN, lease.attempt, index)
    assert await scene.store.agent_sessions.release_group(RUN, lease.attempt)
    assert await scene.complete(lease)


async def test_an_unknown_session_takes_no_calls(
    scene: Scene,
) -> None:
    lease = await opened(scene)
    sessions = scene.store.agent_sessions
    assert await ask(scene, lease, "one", index=2) == "gone"
    assert await sessions.over(RUN, lease.attempt, 2) == "gone"
    assert await sessions.reward(RUN, lease.attempt, 2, Reward(reward=1.0)) == "gone"
    for index in (2, 3):
        assert await sessions.end(RUN, lease.attempt, index) == "gone"
    # No worker is asked to complete the group of two.
    assert await claim(scene) == []


async def test_calls_renew_the_lease_and_a_lapsed_lease_refuses_them(scene: Scene) -> None:
    lease = await opened(scene)
    await scene.store.tasks.renew(RUN, [lease.attempt], 60)
    assert await ask(scene, lease, "one") == "waiting"
    assert await scene.store.agent_sessions.answer_of(RUN, lease.attempt, 0, "one") is None
    (claimed,) = await claim(scene)
    await scene.lapse(lease)
    assert await ask(scene, lease, "one") == "lapsed"
    assert await scene.store.agent_sessions.answer_of(RUN, lease.attempt, 0, "one") == "lapsed"
    assert not await answer(scene, claimed)
    assert await scene.store.agent_sessions.reward(RUN, lease.attempt, 0, Reward()) == "lapsed"
    assert await scene.store.agent_sessions.end(RUN, lease.attempt, 0) == "lapsed"
    await scene.raw.delete(sessions_key(RUN, lease.attempt))
    assert await ask(scene, lease, "one") == "gone"


async def test_a_group_is_stale_when_no_batch_may_train_it(scene: Scene) -> None:
    lease = await opened(scene)
    await ask(scene, lease, "one")
    await answer(scene, (await claim(scene))[0])
    await scene.publish(1)
    assert await ask(scene, lease, "two", (0,)) == "waiting"
    await scene.publish(2)
    assert await ask(scene, lease, "two", (0,)) == "stale"
    assert await scene.store.agent_sessions.end(RUN, lease.attempt, 0) == "stale"


async def test_a_name_keeps_its_group_until_the_group_is_lost(scene: Scene) -> None:
    await scene.start(eta=1)
    first, second, third = await scene.leased(3)
    sessions, own = scene.store.agent_sessions, Row(prompt="1+1", answer="2")

    async def opens(lease: Lease, lost: str = "") -> bool:
        about = Opened(str(lease.position), 0, 1, time.time(), 60.0, 9, own, "mine")
        return await sessions.open(RUN, lease.attempt, about, [f"key of {lease.task}"], lost)

    assert await sessions.named(RUN, "mine") is None
    assert await opens(first)
    assert await opens(first), "the same call, sent again"
    assert not await opens(second), "another request with this name at the same time"
    assert await sessions.key_of(RUN, second.attempt, 0) is None
    found = await sessions.opened(RUN, first.attempt)
    assert found is not None
    assert (found.client_row, found.name) == (own, "mine")

    assert await sessions.named(RUN, "mine") == (first.attempt, "")
    assert await sessions.reopen(RUN, first.attempt, "mine", ["new"]) == ""
    assert await sessions.key_of(RUN, first.attempt, 0) == "new"
    await scene.lapse(first)
    assert await sessions.reopen(RUN, first.attempt, "mine", ["newer"]) == "lapsed"
    assert await sessions.key_of(RUN, first.attempt, 0) == "new"

    assert await opens(second, first.attempt)
    assert not await opens(third, first.attempt), "it has gone on to the second one"
    await sessions.end(RUN, second.attempt, 0)
    assert await sessions.named(RUN, "mine") == (second.attempt, "ended")
    assert await sessions.reopen(RUN, second.attempt, "mine", ["newer"]) == "ended"
    await scene.lapse(second)
    # The lease has lapsed without a completion.
    assert await sessions.reopen(RUN, second.attempt, "mine", ["newer"]) == "lapsed"
    assert not await scene.complete(second)
    await sessions.close(RUN, second.attempt, "lapsed")
    assert await sessions.named(RUN, "mine") == (second.attempt, "lapsed")

    assert await opens(third, second.attempt)
    await sessions.end(RUN, third.attempt, 0)
    assert await scene.complete(third)
    assert await sessions.named(RUN, "mine") == (third.attempt, "completed")
    names = [key async for key in scene.raw.scan_iter(match="*:sessions:*")]
    assert all([await scene.raw.ttl(key) > 3600 for key in names]), "none stays for ever"


async def test_an_unreadable_call_is_skipped(scene: Scene) -> None:
    lease = await opened(scene)
    await ask(scene, lease, "one")
    await ask(scene, lease, "two", index=1)
    await scene.raw.hset(f"headrace:{{{RUN}}}:calls", f"{lease.attempt}/0/one", b"\xff")
    assert [one.digest for one in await claim(scene)] == ["two"]
    assert await scene.raw.zcard(f"headrace:{{{RUN}}}:calls_due") == 1


def texts(items: list[dict[str, Any]]) -> list[str]:
    return [item["content"][0]["text"] for item in items]


async def test_a_repeated_request_adds_its_items_to_a_conversation_once(scene: Scene) -> None:
    session = SessionName(RUN, (await opened(scene)).attempt, 0)
    responses = Responses(scene.store, cast(Any, None))
    talk = (await responses.begin(session, {}, ""))["id"]
    sums = [{"items": [{"role": "user", "content": text}]} for text in ("1+1", "2+2")]

    first = await responses.add(session, talk, sums[0], "key 1")
    assert await responses.add(session, talk, sums[0], "key 1") == first
    await responses.add(session, talk, sums[1], "key 2")
    # The answer to the first request was lost for long.
    assert await responses.add(session, talk, sums[0], "key 1") == first
    with pytest.raises(SessionProblem, match="these items were not added"):
        await responses.add(session, talk, sums[1], "key 1")
    await responses.add(session, talk, sums[1], "key 3")

    assert texts(await responses.items(session, talk)) == ["1+1", "2+2", "2+2"]


async def test_items_of_conversations_keep_to_the_bytes_of_a_session(scene: Scene) -> None:
    session = SessionName(RUN, (await opened(scene, max_bytes=3000)).attempt, 0)
    responses = Responses(scene.store, cast(Any, None))
    talk = (await responses.begin(session, {}, ""))["id"]
    items = {"items": [{"role": "user", "content": "x" * 2000}]}

    await responses.add(session, talk, items, "")
    with pytest.raises(SessionProblem, match="so these items were not added: send fewer"):
        await responses.add(session, talk, items, "")
    with pytest.raises(SessionProblem, match="so the conversation was not begun"):
        await responses.begin(session, {"items": [*items["items"], *items["items"]]}, "")

    assert len(await responses.items(session, talk)) == 1
