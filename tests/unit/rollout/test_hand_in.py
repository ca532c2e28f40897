"""How a group is handed in, without vLLM and Redis."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from rollout.rewards.combine import earned_score
from rollout.work import hand_in
from rollout.work.group import Sampled
from rollout.work.hand_in import HandIn
from services.contracts.config import parse_config
from services.contracts.groups.group_lengths import GroupLengths
from services.contracts.groups.trajectory import encode
from services.contracts.sessions import Reward
from tests.unit.contracts.test_trajectory import GROUP

CONFIG = parse_config(
    {"model": {"path": "m"}, "data": {"dataset": "d"}, "rewards": [{"verifier": "exact"}]}
)


async def test_the_worker_goes_on_while_a_group_is_encoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turned, taken = threading.Event(), []
    loop = asyncio.get_running_loop()

    def slow(group: Any) -> memoryview:
        loop.call_soon_threadsafe(turned.set)
        assert turned.wait(60), "the event loop stands still"
        return encode(group)

    async def complete(*of_the_group: Any) -> bool:
        taken.append(of_the_group)
        return True

    async def stored(owner: Any, payload: memoryview) -> bytes:
        return bytes(payload)

    async def proven(tags: list[str]) -> None:
        pass

    monkeypatch.setattr(hand_in, "encode", slow)
    monkeypatch.setattr(hand_in, "to_group", lambda *_, **__: (GROUP, "aaa:0"))
    context: Any = SimpleNamespace(
        run="r",
        config=CONFIG,
        sequences=SimpleNamespace(finished=lambda *lengths: None),
        teacher=None,
        follower=SimpleNamespace(until_proven=proven),
        payloads=SimpleNamespace(stored=stored),
    )
    sampled = Sampled([1], [], [earned_score(Reward(reward=0.5))])
    row = MagicMock(dataset=SimpleNamespace(context=context, name="d"))
    lease: Any = SimpleNamespace(task=5, attempt="x")
    leases: Any = SimpleNamespace(complete=complete)

    assert await HandIn(leases, None)(lease, None, 0.0, row, sampled)  # type: ignore[arg-type]

    ((attempt, version, lineage, payload, lengths, _),) = taken
    assert (attempt, version, lineage, payload) == ("x", 0, "aaa", bytes(encode(GROUP)))
    assert isinstance(lengths, GroupLengths)
