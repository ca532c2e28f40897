"""An interrupted and resumed completion is one completion, without any loss."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollout.vllm.client.policy_client import MOST_BEGUN, PolicyClient, RequestRefused
from rollout.vllm.client.response import Sample, Span, check_spans
from rollout.vllm.client.resume import begun_by, joined, not_sampled, rest_of
from services.contracts.groups.sampling_mask import SamplingMask


def sample(tokens: list[int], reason: str, *spans: tuple[int, int, str]) -> Sample:
    return Sample(
        np.array(tokens, np.int32),
        np.array([-0.1 * token for token in tokens], np.float32),
        reason,
        [Span(*span) for span in spans],
    )


def test_tokens_logprobs_and_versions_are_joined_in_order() -> None:
    begun = sample([4, 5, 6], "abort", (0, 2, "a:1"), (2, 3, "a:2"))
    whole = joined(begun, sample([7, 8], "stop", (0, 1, "a:3"), (1, 2, "a:4")))

    assert whole.token_ids.tolist() == [4, 5, 6, 7, 8]
    assert whole.token_ids.dtype == np.int32
    np.testing.assert_allclose(whole.logprobs, [-0.4, -0.5, -0.6, -0.7, -0.8], rtol=1e-6)
    assert whole.finish_reason == "stop"
    assert whole.spans == [
        Span(0, 2, "a:1"),
        Span(2, 3, "a:2"),
        Span(3, 4, "a:3"),
        Span(4, 5, "a:4"),
    ]
    check_spans(whole.spans, 5)


def test_the_same_version_on_both_sides_is_one_span() -> None:
    whole = joined(sample([4], "abort", (0, 1, "a:1")), sample([5, 6], "length", (0, 2, "a:1")))
    assert whole.spans == [Span(0, 3, "a:1")]


def test_a_completion_interrupted_before_its_first_token_is_its_continuation() -> None:
    whole = joined(sample([], "abort"), sample([5], "stop", (0, 1, "a:2")))
    assert (whole.token_ids.tolist(), whole.spans) == ([5], [Span(0, 1, "a:2")])


def test_a_completion_that_is_interrupted_twice_is_joined_twice() -> None:
    first = joined(sample([1], "abort", (0, 1, "a:1")), sample([2], "abort", (0, 1, "a:2")))
    assert first.finish_reason == "abort"
    whole = joined(first, sample([3], "stop", (0, 1, "a:2")))
    assert whole.spans == [Span(0, 1, "a:1"), Span(1, 3, "a:2")]


def test_inserted_tokens_belong_to_no_version_and_separate_spans() -> None:
    begun = joined(sample([4], "stop", (0, 1, "a:1")), not_sampled([8, 9], "stop"))
    whole = joined(begun, sample([5], "stop", (0, 1, "a:1")))
    assert whole.token_ids.tolist() == [4, 8, 9, 5]
    assert whole.logprobs.tolist()[1:3] == [0, 0]
    assert whole.spans == [Span(0, 1, "a:1"), Span(3, 4, "a:1")]


def test_sampling_masks_are_joined_and_cut_with_their_tokens() -> None:
    begun = replace(
        sample([4, 5], "abort", (0, 2, "a:1")), sampling_mask=SamplingMask.of([[4, 1], [5]])
    )
    rest = replace(sample([6], "stop", (0, 1, "a:2")), sampling_mask=SamplingMask.of([[6, 2]]))
    whole = joined(joined(begun, not_sampled([9], "stop")), rest)
    assert whole.sampling_mask is not None
    assert whole.sampling_mask.table().tolist() == [[1, 4], [5, -1], [-1, -1], [2, 6]]
    first = begun_by(whole, 1)
    assert first.sampling_mask is not None
    assert (first.token_ids.tolist(), first.sampling_mask.ids.tolist()) == ([4], [1, 4])
    assert first.spans == [Span(0, 1, "a:1")]


def test_the_first_tokens_of_a_completion_keep_their_spans() -> None:
    whole = sample([4, 5, 6], "stop", (0, 2, "a:1"), (2, 3, "a:2"))
    assert begun_by(whole, 2).spans == [Span(0, 2, "a:1")]
    assert begun_by(whole, 1).spans == [Span(0, 1, "a:1")]
    assert begun_by(whole, 3).spans == whole.spans


def test_a_resumed_request_asks_for_the_remaining_tokens() -> None:
    sampling = {"max_tokens": 64, "temperature": 0.8, "stop_token_ids": [1]}
    rest = {"max_tokens": 59, "temperature": 0.8, "stop_token_ids": [1]}
    assert rest_of(sampling, 0, 5) == rest


def test_a_resumed_request_has_another_seed() -> None:
    sampling = {"max_tokens": 64, "seed": 7}
    seeds = {rest_of(sampling, index, done)["seed"] for index in (0, 1) for done in (5, 6)}
    assert len(seeds) == 4
    assert 7 not in seeds
    assert rest_of(sampling, 1, 5) == rest_of(sampling, 1, 5)
    # Sample i has seed + i.
    assert rest_of(sampling, 1, 5) == rest_of(sampling | {"seed": 8}, 0, 5)


async def test_an_answer_with_a_constraint_restarts_a_limited_number_of_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def interrupted(self: PolicyClient, token_ids: list[int], *_: Any) -> list[Sample]:
        asked.append(token_ids)
        # At first the learner takes the GPU again and again, which no setting of the user can
        # change.
        self.weights.sleeping = len(asked) <= MOST_BEGUN
        return [sample([4, 5], "abort", (0, 2, "a:1"))]

    monkeypatch.setattr(PolicyClient, "_request", interrupted)
    client = PolicyClient(tmp_path / "socket")
    sampling = {"max_tokens": 9, "structured_outputs": {"json_object": True}}
    with pytest.raises(RequestRefused, match="let the run use keep"):
        await client.generate([1, 2], 1, sampling)
    await client.close()

    assert asked == [[1, 2]] * 2 * MOST_BEGUN
