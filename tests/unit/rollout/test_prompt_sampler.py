"""The requests to vLLM for an episode's turns: length, seed, stop texts."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from rollout.vllm.client.policy_client import PastDeadline
from rollout.vllm.client.response import Sample
from rollout.vllm.client.resume import mixed
from rollout.work.prompt_sampler import PromptSampler
from services.contracts.config.rollout import Sampling
from tests.unit.rollout.episodes import EOS, WordTokenizer, sample

CONTEXT = 20


class Asked:
    """A policy that notes its requests, and answers with one token."""

    def __init__(self) -> None:
        self.params: list[dict[str, Any]] = []

    async def generate(
        self,
        token_ids: list[int],
        n: int,
        params: dict[str, Any],
        cut: asyncio.Event | None,
        *_: Any,
    ) -> list[Sample]:
        self.params.append(params)
        if cut is not None and cut.is_set():
            raise PastDeadline("nothing was sampled before the deadline")
        return [sample(["so "])] * n


def sampler(
    policy: Asked, sampling: Sampling, seed: int | None = None, cut: asyncio.Event | None = None
) -> PromptSampler:
    context: Any = SimpleNamespace(
        tokenizer=WordTokenizer(), eos=[EOS], context=CONTEXT, policy=policy, vocabulary=None
    )
    return PromptSampler(context, sampling, seed, cut)


def asked(of: PromptSampler, policy: Asked, *arguments: Any) -> dict[str, Any]:
    asyncio.run(of.sample(*arguments))
    return policy.params[-1]


def test_a_completion_is_as_long_as_the_run_and_the_context_allow() -> None:
    policy = Asked()
    one = sampler(policy, Sampling(max_tokens=12))
    assert asked(one, policy, [7] * 5, 2)["max_tokens"] == 12
    # With 5 tokens of prompt and 8 of the completion, 4 more are allowed; then 15 of the context's
    # 20 are left.
    assert asked(one, policy, [7] * 13, 1, "", 0, 8)["max_tokens"] == 4
    assert asked(one, policy, [7] * 10, 2)["max_tokens"] == 10
    assert asked(one, policy, [7] * 18, 1, "", 0, 8)["max_tokens"] == 2
    assert (one.most_tokens([7] * 5), one.most_tokens([7] * 10)) == (12, 10)


@pytest.mark.parametrize("there", [(17, 12), (20, 10)], ids=["max_tokens", "context"])
def test_a_request_is_sent_only_if_a_token_fits(there: tuple[int, int]) -> None:
    policy = Asked()
    length, done = there
    one = sampler(policy, Sampling(max_tokens=12))
    (ended,) = asyncio.run(one.sample([7] * length, 1, "", 0, done))
    assert (len(ended.token_ids), ended.finish_reason, policy.params) == (0, "length", [])


def test_each_turn_of_each_completion_has_its_own_seed() -> None:
    policy = Asked()
    one = sampler(policy, Sampling(), seed=9)
    assert asked(one, policy, [7], 2)["seed"] == 9
    # Completion i began with seed 9 + i.
    assert asked(one, policy, [7] * 4, 1, "", 1, 3)["seed"] == mixed(10, 3)


def test_a_stop_text_that_is_an_added_token_stops_by_its_id() -> None:
    policy = Asked()
    params = asked(sampler(policy, Sampling(stop_token_ids=[5])), policy, [7], 1, "<eos>")
    assert params["stop_token_ids"] == [EOS, 5]
    assert "stop" not in params


def test_any_other_stop_text_is_passed_to_vllm() -> None:
    policy = Asked()
    params = asked(sampler(policy, Sampling()), policy, [7], 1, "]")
    assert params["stop"] == ["]"]
    # Otherwise vLLM would have no text to search, or a text without special tokens.
    assert (params["detokenize"], params["skip_special_tokens"]) == (True, False)


def test_a_completion_past_its_deadline_keeps_its_tokens() -> None:
    policy, cut = Asked(), asyncio.Event()
    cut.set()
    one = sampler(policy, Sampling(), cut=cut)
    (ended,) = asyncio.run(one.sample([7] * 4, 1, "", 0, 3))
    assert (len(ended.token_ids), ended.finish_reason) == (0, "deadline")
    with pytest.raises(PastDeadline):
        asyncio.run(one.sample([7], 1))
