"""Completing a group, without vLLM and Redis."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from rollout.episodes import Completion
from rollout.rewards.combine import SampleScore, earned_score
from rollout.work import hand_in
from rollout.work.group import Sampled, VerifierBroke
from rollout.work.hand_in import JUDGED_AT_ONCE, HandIn
from services.contracts.config import parse_config
from services.contracts.groups.group_lengths import GroupLengths
from services.contracts.groups.sampled_answer import SampledAnswer
from services.contracts.groups.trajectory import encode
from services.contracts.sessions import Reward
from tests.unit.contracts.test_trajectory import GROUP
from tests.unit.rollout.episodes import WordTokenizer, ids, sample

RAW = {"model": {"path": "m"}, "data": {"dataset": "d"}, "rewards": [{"verifier": "exact"}]}
CONFIG = parse_config(RAW)


def completion(word: str) -> Completion:
    sampled = sample([word], version="a:2")
    mask = sampled.logprobs < 0
    return Completion(sampled.token_ids, mask, sampled.logprobs, sampled.spans, "stop")


async def test_the_worker_continues_while_a_group_is_encoded(
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
    monkeypatch.setattr(hand_in, "to_group", lambda *_: GROUP)
    context: Any = SimpleNamespace(
        run="r",
        worker="w",
        config=CONFIG,
        sequences=SimpleNamespace(finished=lambda *lengths: None),
        teacher=None,
        follower=SimpleNamespace(until_proven=proven, forks={}),
        payloads=SimpleNamespace(stored=stored),
    )
    sampled = Sampled([1], [], [earned_score(Reward(reward=0.5))])
    row = MagicMock(dataset=SimpleNamespace(context=context, name="d"))
    lease: Any = SimpleNamespace(task=5, attempt="x")
    leases: Any = SimpleNamespace(complete=complete)

    events: Any = SimpleNamespace(judged=proven)
    monkeypatch.setattr(hand_in, "judged_answers", lambda *_: [])
    live: Any = SimpleNamespace(tag="aaa:0", lineage="aaa")
    assert await HandIn(leases, events)(lease, live, 0.0, row, sampled)

    ((attempt, version, lineage, payload, lengths, _),) = taken
    assert (attempt, version, lineage, payload) == ("x", 0, "aaa", bytes(encode(GROUP)))
    assert isinstance(lengths, GroupLengths)


async def test_answers_of_an_untrained_group_are_kept() -> None:
    """The group is filtered, since all its rewards are equal. The next group has no reward at
    all."""
    kept: list[SampledAnswer] = []

    async def judged(answers: list[SampledAnswer]) -> None:
        kept.extend(answers)

    async def end(*of_the_group: Any) -> bool:
        return True

    config = parse_config(RAW | {"algorithm": {"dynamic_sampling": {}}})
    context: Any = SimpleNamespace(
        config=config,
        sequences=SimpleNamespace(finished=lambda *_: None),
        tokenizer=WordTokenizer(),
    )
    row: Any = SimpleNamespace(dataset=SimpleNamespace(context=context, name="d"), index=3)
    leases: Any = SimpleNamespace(end=end, tasks=SimpleNamespace(filter_group=None))
    events: Any = SimpleNamespace(judged=judged)
    lease: Any = SimpleNamespace(task=5, attempt="x")

    def group(*scores: SampleScore) -> Sampled:
        made = [completion(str(at)) for at in range(len(scores))]
        return Sampled(ids("1", "+"), made, list(scores), reference="8")

    wrong = SampleScore(0.0, "wrong", {"exact": 0.0}, reasons={"exact": "'0' is not '8'"})
    hand: Any = HandIn(leases, events)
    # After the first groups, at most one group a second is kept.
    for _ in range(JUDGED_AT_ONCE + 5):
        assert await hand(lease, None, 0.0, row, group(wrong, wrong))
    assert len(kept) == JUDGED_AT_ONCE
    only = kept[0]
    assert (only.step, only.task, only.row, only.dataset) == (0, 5, 3, "d")
    assert (only.prompt, only.completion, only.reference) == ("1+", "1", "8")
    assert (only.reward, only.status, only.reasons) == (0.0, "wrong", wrong.reasons)
    assert (only.versions, only.finish_reason, only.advantage) == ([2], "stop", None)

    broken = earned_score(Reward(error="the judge is away"))
    with pytest.raises(VerifierBroke):
        await HandIn(leases, events)(lease, None, 0.0, row, group(broken))  # type: ignore[arg-type]
    assert kept[-1].reasons == {"reward": "the judge is away"}
