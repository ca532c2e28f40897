"""Sampling masks: how they are requested from vLLM, and how they are read."""

from typing import Any

import pytest

from rollout.vllm.client.response import MalformedAnswer, Sample, parse_answer, sampling_params
from rollout.vllm.client.sampling_mask import TIES, server_flags
from rollout.vllm_plugin.wire import ids, logprobs
from services.contracts.config.data import PromptOptions
from services.contracts.config.evaluation import Evaluation, resolved
from services.contracts.config.rewards import RewardComponent
from services.contracts.config.rollout import Sampling
from tests.unit.rollout.test_response import answer, choice

CUT = Sampling(top_k=2, top_p=0.9)
OFF = -9999.0


def asked(sampling: Sampling, vocabulary: int | None) -> dict[str, Any]:
    return sampling_params(sampling, [1], 100, None, vocabulary)


def test_a_run_with_top_k_needs_server_options() -> None:
    assert server_flags(Sampling(), on_cpu=False) == {}
    assert server_flags(CUT, on_cpu=False) == {"return-sampling-mask": True}
    assert server_flags(CUT, on_cpu=True) == {"max-logprobs": 2 + TIES}


def test_masks_are_requested_on_a_cpu_and_returned_on_a_gpu() -> None:
    assert "logprobs" not in asked(CUT, None)
    assert asked(CUT, 32_000)["logprobs"] == 2 + TIES
    # vLLM fails if more log-probabilities are requested than the vocabulary has tokens.
    assert asked(CUT, 10)["logprobs"] == 10
    assert "logprobs" not in asked(Sampling(), 10)


def test_a_greedy_evaluation_with_top_k_works_on_both_devices() -> None:
    (only,) = Evaluation(dataset="d").sets
    rewards = [RewardComponent(verifier="exact")]
    greedy = resolved(
        only, id="1", dataset_name="d", rows=1, sampling=CUT, prompt=PromptOptions(),
        rewards=rewards,
    ).sampling  # fmt: skip
    on_gpu, on_cpu = asked(greedy, None), asked(greedy, 32_000)
    assert (on_gpu["temperature"], on_gpu["top_k"], on_gpu["top_p"]) == (1.0, 1, 1.0)
    assert (on_cpu["temperature"], on_cpu["top_k"], on_cpu["top_p"]) == (0.0, 0, 1.0)
    assert "logprobs" not in on_cpu


def of_gpu(mask: list[list[int]] | None, **more: Any) -> Sample:
    flat = [token for each in mask or [] for token in each]
    found = choice(counts=ids([len(each) for each in mask or []]), candidates=ids(flat), **more)
    (sample,) = parse_answer(answer(found), asked(CUT, None))
    return sample


def test_a_returned_mask_is_read() -> None:
    kept = of_gpu([[5, 2], [6]]).sampling_mask
    assert kept is not None
    assert kept.table().tolist() == [[2, 5], [6, -1]]


def of_cpu(*alternatives: list[tuple[int, float]], vocabulary: int = 32_000) -> Sample:
    flat = [one for each in alternatives for one in each]
    given = choice(
        counts=ids([len(each) for each in alternatives]),
        candidates=ids([token for token, _ in flat]),
        candidate_logprobs=logprobs([logprob for _, logprob in flat]),
    )
    (sample,) = parse_answer(answer(given), asked(CUT, vocabulary))
    return sample


def test_tokens_without_probability_are_not_in_the_mask() -> None:
    kept = of_cpu([(5, -0.5), (2, -0.9), (7, OFF)], [(6, 0.0), (1, OFF), (0, OFF)]).sampling_mask
    assert kept is not None
    assert kept.table().tolist() == [[2, 5], [6, -1]]


def test_a_vocabulary_smaller_than_top_k_is_in_the_mask_whole() -> None:
    kept = of_cpu([(5, -0.7), (6, -0.7)], [(6, -0.7), (5, -0.7)], vocabulary=2).sampling_mask
    assert kept is not None
    assert kept.ids.tolist() == [5, 6, 5, 6]


def test_a_tie_longer_than_the_list_is_refused() -> None:
    tie = [(5 + i, -2.8) for i in range(2 + TIES)]
    with pytest.raises(MalformedAnswer, match=r"14 tokens or more are exactly as likely .*float32"):
        of_cpu(tie, [(6, 0.0), (1, OFF)])


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (None, "sample 0: 2 tokens were chosen from 0 sets"),
        ([[5]], "2 tokens were chosen from 1 sets"),
        ([[5], [7, 8]], "token 6 is none of the 2 it was chosen from"),
    ],
)
def test_an_answer_without_a_mask_is_refused(mask: Any, said: str) -> None:
    with pytest.raises(MalformedAnswer, match=said):
        of_gpu(mask)


@pytest.mark.parametrize("counts", [(1, 2), (3, -1)])
def test_counts_that_do_not_fit_the_candidates_are_refused(counts: tuple[int, int]) -> None:
    found = choice(counts=ids(counts), candidates=ids([5, 6]))
    with pytest.raises(MalformedAnswer, match="sample 0: its counts do not fit its candidates"):
        parse_answer(answer(found), asked(CUT, None))


def test_a_run_without_top_k_ignores_masks() -> None:
    (sample,) = parse_answer(answer(choice()), asked(Sampling(), 9))
    assert sample.sampling_mask is None
