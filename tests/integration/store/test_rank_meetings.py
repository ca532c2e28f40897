"""The nodes of a learner start and end their ranks together."""

import json
import secrets
from typing import Any

import pytest

from services.store import Store
from services.store.keys import pool_key
from services.store.runs.ranks import LAPSE_SECONDS, Agreement, Node

FIRST, SECOND = Node(0, 2, "a:1:1:x", ranks=4), Node(1, 2, "b:1:1:x", ranks=2)


async def join(
    store: Store, node: Node, running: str = "", ended: str = "", candidate: str = "new"
) -> Agreement:
    return await store.rank_meetings.join(
        "default", node, running=running, ended=ended, candidate=candidate
    )


async def running(store: Store) -> None:
    """Let both nodes run the start `s`."""
    await join(store, FIRST)
    assert (await join(store, SECOND, candidate="s")).start == "s"
    assert (await join(store, FIRST, "s")).start == "s"
    assert (await join(store, SECOND, "s")).start == "s"


async def lapse(raw: Any, node: Node) -> None:
    key = pool_key("default", "nodes")
    record = json.loads(await raw.hget(key, node.number))
    await raw.hset(key, node.number, json.dumps(record | {"deadline": 1}))


async def test_ranks_start_once_all_nodes_are_there(store: Store) -> None:
    assert await join(store, FIRST, candidate="s") == Agreement("", "", (4, 0))
    assert await join(store, SECOND, candidate="t") == Agreement("t", "", (4, 2))
    assert await join(store, FIRST, candidate="s") == Agreement("t", "", (4, 2))


async def test_ranks_that_end_on_one_node_end_on_all_before_any_start_again(store: Store) -> None:
    await running(store)
    assert (await join(store, SECOND, ended="s")).start == ""
    assert (await join(store, SECOND, ended="s")).start == "", "the first node's ranks still run"
    assert (await join(store, FIRST, "s")).start == ""
    assert (await join(store, FIRST, ended="s", candidate="t")).start == "t"
    assert (await join(store, SECOND, ended="s")).start == "t"


async def test_a_node_that_is_silent_ends_the_ranks_of_the_others(store: Store, raw: Any) -> None:
    await running(store)
    await lapse(raw, SECOND)
    assert await join(store, FIRST, "s") == Agreement("", "", (4, 0))
    # It only slept: it ends its ranks, too.
    assert (await join(store, SECOND, "s")).start == ""


async def test_a_node_that_died_before_the_clock_went_back_lapses_in_its_time(
    store: Store, raw: Any
) -> None:
    await running(store)
    key, again = pool_key("default", "nodes"), Node(1, 2, "b:2:2:y", ranks=2)

    async def deadline() -> float:
        return float(json.loads(await raw.hget(key, SECOND.number))["deadline"])

    async def now() -> float:
        seconds, microseconds = await raw.time()
        return seconds * 1000 + microseconds / 1000

    record = json.loads(await raw.hget(key, SECOND.number))
    hour = record | {"deadline": await now() + 3_600_000}
    await raw.hset(key, SECOND.number, json.dumps(hour))
    assert (await join(store, again)).holder == SECOND.token, "the dead one may live"
    assert await deadline() <= await now() + LAPSE_SECONDS * 1000


async def test_a_host_that_comes_back_starts_all_ranks_again(store: Store, raw: Any) -> None:
    await running(store)
    again = Node(1, 2, "b:2:2:y", ranks=2)
    assert await join(store, again) == Agreement("", SECOND.token, ()), "the dead one may live"
    await lapse(raw, SECOND)
    assert (await join(store, again)).start == ""
    assert (await join(store, FIRST, "s")).start == ""
    assert (await join(store, FIRST, ended="s", candidate="t")).start == "t"
    assert (await join(store, again)).start == "t"


async def test_a_node_that_leaves_in_order_is_not_waited_for(store: Store) -> None:
    await running(store)
    await store.rank_meetings.leave("default", SECOND)
    assert await join(store, FIRST, "s") == Agreement("", "", (4, 0))
    assert (await join(store, Node(1, 2, "b:2:2:y", ranks=2))).holder == ""


async def test_a_learner_of_another_size_waits_until_this_one_has_left(store: Store) -> None:
    await running(store)
    larger = Node(2, 3, "c:1:1:z", ranks=1)
    assert (await join(store, larger)).holder in (FIRST.token, SECOND.token)
    assert (await join(store, FIRST, "s")).start == "s"
    for node in (FIRST, SECOND):
        await store.rank_meetings.leave("default", node)
    assert await join(store, larger) == Agreement("", "", (0, 0, 1))


async def test_the_values_of_ranks_are_deleted_with_their_start_and_their_nodes(
    store: Store, raw: Any
) -> None:
    await running(store)
    await store.rank_meetings.put("default", "s/address", b"1")
    assert await store.rank_meetings.add("default", "s/count", 2) == 2
    for part in ("nodes", "ranks"):
        assert 0 < await raw.ttl(pool_key("default", part)) <= 60
    await join(store, SECOND, ended="s")
    await join(store, FIRST, ended="s", candidate="t")
    assert await store.rank_meetings.get("default", ["s/address", "s/count"]) == [None, None]


async def test_a_repeated_addition_returns_the_same_sum(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = store.rank_meetings.add
    assert [await add("default", "s/joined", amount) for amount in (1, 2, 0)] == [1, 3, 3]
    monkeypatch.setattr(secrets, "token_hex", lambda size: "the same call")
    assert [await add("default", "s/joined", 1) for _ in range(2)] == [4, 4]
