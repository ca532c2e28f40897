"""What a worker that leaves has sampled reaches the next worker unchanged, and is continued."""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import numpy as np
import pytest

from rollout.vllm.client.policy_client import Interrupted, PolicyClient
from rollout.vllm.client.response import Sample, Span
from rollout.vllm.client.resume import Begun
from rollout.work.group_assembly import Origin
from rollout.work.partial_group import begun_group, partial_group
from rollout.work.partials import Partials
from services.contracts.groups.sampling_mask import SamplingMask
from services.contracts.groups.trajectory import decode, encode
from services.contracts.rows.task import TaskPosition
from services.store.work.tasks import Lease

ORIGIN = Origin("r", 3, "0" * 16, "leaver", 5, "a", 1.0)


def sample(tokens: list[int], reason: str, *spans: tuple[int, int, str]) -> Sample:
    return Sample(
        np.array(tokens, np.int32),
        np.array([-token / 7 for token in tokens], np.float32),
        reason,
        [Span(*span) for span in spans],
    )


def unchanged(one: Sample, other: Sample) -> bool:
    return (
        one.token_ids.tobytes() == other.token_ids.tobytes()
        and one.logprobs.tobytes() == other.logprobs.tobytes()
        and (one.finish_reason, one.spans) == (other.finish_reason, other.spans)
    )


def test_a_partial_has_each_token_logprob_version_and_end_of_its_samples() -> None:
    begun = Begun(
        [1, 2],
        [
            sample([4, 5, 6], "abort", (0, 2, "a:1"), (2, 3, "a:2")),
            sample([], "abort"),
            sample([7], "stop", (0, 1, "a:1")),
        ],
    )
    read = begun_group(decode(encode(partial_group(ORIGIN, begun))))

    assert (read.prompt, read.worker, read.tokens) == ([1, 2], "leaver", 4)
    assert all(map(unchanged, read.samples, begun.samples))


def test_a_partial_keeps_the_tokens_that_each_token_was_chosen_from() -> None:
    masks = [SamplingMask.of([[4, 9], [5]]), SamplingMask.of([[1, 7, 8]])]
    samples = [sample([4, 5], "abort", (0, 2, "a:1")), sample([7], "stop", (0, 1, "a:1"))]
    for one, mask in zip(samples, masks, strict=True):
        one.sampling_mask = mask
    read = begun_group(decode(encode(partial_group(ORIGIN, Begun([1], samples)))))

    kept = [one.sampling_mask for one in read.samples]
    assert [mask and (mask.counts.tolist(), mask.ids.tolist()) for mask in kept] == [
        ([2, 1], [4, 9, 5]),
        ([3], [1, 7, 8]),
    ]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"spans": [[0, 0, 1, 9]]}, "sample 0 and version 9"),
        ({"spans": [[0, 0, 1, -1]]}, "sample 0 and version -1"),
        ({"spans": [[5, 0, 1, 0]]}, "sample 5 and version 0"),
        ({"spans": [[0, 0, 9, 0]]}, "do not cover"),
        ({"spans": []}, "do not cover"),
        ({"tags": ["no version"]}, "not a version tag"),
    ],
)
def test_a_hostile_partial_is_a_value_error(changes: dict[str, Any], says: str) -> None:
    group = partial_group(ORIGIN, Begun([1], [sample([4], "abort", (0, 1, "a:1"))]))
    if "spans" in changes:
        group.spans = np.array(changes["spans"], np.int64).reshape(-1, 4)
    group.header.tags[:] = changes.get("tags", group.header.tags)
    with pytest.raises(ValueError, match=says):
        begun_group(group)


@pytest.mark.parametrize(
    ("run", "task", "says"),
    [("r", 3, ""), ("other", 3, "task 3 of other"), ("r", 4, "task 4 of r")],
)
async def test_only_the_partial_of_its_own_task_is_continued(
    run: str, task: int, says: str
) -> None:
    begun = Begun([1], [sample([4], "abort", (0, 1, "a:1"))])
    origin = replace(ORIGIN, run=run, task=task)
    payloads, leases, events = AsyncMock(), AsyncMock(), AsyncMock()
    payloads.read.return_value = encode(partial_group(origin, begun))
    row: Any = SimpleNamespace(
        dataset=SimpleNamespace(context=SimpleNamespace(run="r", payloads=payloads))
    )
    lease = Lease("0" * 16, TaskPosition(3, 0, 100, 3), "continued")
    read = await Partials(leases, events).begun(lease, row)
    assert (read is None) == bool(says)
    assert says in str(events.counted.call_args)


async def test_a_worker_that_leaves_ends_requests_and_the_next_continues_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaving = asyncio.Event()
    asked: list[tuple[list[int], int, dict[str, Any]]] = []
    answers = iter(
        [
            [sample([4, 5], "abort", (0, 2, "a:1")), sample([9], "stop", (0, 1, "a:1"))],
            [sample([6, 7], "length", (0, 2, "a:2"))],
        ]
    )

    async def request(
        self: PolicyClient, token_ids: list[int], n: int, sampling: dict[str, Any], *_: Any
    ) -> list[Sample]:
        asked.append((token_ids, n, sampling))
        leaving.set()
        return next(answers)

    monkeypatch.setattr(PolicyClient, "_request", request)
    client = PolicyClient(tmp_path / "socket")
    client.weights.open.set()
    sampling = {"max_tokens": 4, "seed": 1}
    with pytest.raises(Interrupted) as interrupted:
        await client.generate([1, 2], 2, sampling, leaving=leaving)
    begun = interrupted.value.begun
    assert begun is not None
    assert [s.finish_reason for s in begun.samples] == ["abort", "stop"]

    whole = await client.generate([1, 2], 2, sampling, leaving=asyncio.Event(), begun=begun.samples)
    await client.close()

    assert [s.token_ids.tolist() for s in whole] == [[4, 5, 6, 7], [9]]
    assert whole[0].spans == [Span(0, 2, "a:1"), Span(2, 4, "a:2")]
    # Only the unfinished sample was asked for, with a seed of its own.
    (_, (prompt, n, params)) = asked
    assert (prompt, n, params["max_tokens"]) == ([1, 2, 4, 5], 1, 2)
    assert params["seed"] != 1


async def test_an_answer_with_a_constraint_is_not_left_to_another_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaving = asyncio.Event()

    async def request(*_: Any) -> list[Sample]:
        leaving.set()
        return [sample([4], "abort", (0, 1, "a:1"))]

    monkeypatch.setattr(PolicyClient, "_request", request)
    client = PolicyClient(tmp_path / "socket")
    client.weights.open.set()
    with pytest.raises(Interrupted) as interrupted:
        await client.generate([1], 1, {"max_tokens": 4, "structured_outputs": {}}, leaving=leaving)
    await client.close()
    assert interrupted.value.begun is None
