"""Rewards of an answer's parts, and the tokens that get them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from rollout.rewards.combine import combine
from rollout.rewards.token_rewards import LONGEST_CHARACTER, earned, text_ends, token_rewards
from rollout.work.group import Sampled
from rollout.work.group_assembly import assemble
from services.contracts.config import ConfigError, parse_config
from services.contracts.config.rewards import RewardComponent, named
from services.contracts.groups.trajectory import decode, encode
from services.contracts.scores import PartScore, ScoreResult, ScoreStatus
from tests.unit.rollout.test_group_assembly import ORIGIN, completion


def rewards(**options: Any) -> dict[str, RewardComponent]:
    return named([RewardComponent.model_validate({"verifier": "steps", **options})])


def result(*parts: tuple[int, float], reward: float = 1.0) -> ScoreResult:
    return ScoreResult(
        id="0",
        status=ScoreStatus.SCORED,
        reward=reward,
        parts=[PartScore(end=end, score=score) for end, score in parts],
    )


def test_each_part_earns_its_score() -> None:
    dense = rewards(dense="values", weight=0.5, clip=[-1, 1])
    said = {"steps": result((4, 0.5), (9, -3.0), (12, 1.0))}
    assert earned(dense, said) == [(4, 0.25), (9, -0.5), (12, 0.5)]


def test_cumulative_scores_are_differenced_after_the_clip() -> None:
    dense = rewards(dense="cumulative", weight=2.0, clip=[0, 1])
    # Clipped .25, .75, 1: the difference of each to the one before.
    said = {"steps": result((4, 0.25), (9, 0.75), (12, 4.0))}
    assert earned(dense, said) == [(4, 0.5), (9, 1.0), (12, 0.5)]


def test_a_score_before_the_first_character_is_only_a_baseline() -> None:
    said = {"steps": result((0, 0.25), (9, 1.0))}
    assert earned(rewards(dense="cumulative"), said) == [(9, 0.75)]
    assert earned(rewards(dense="values"), said) == [(9, 1.0)]


def test_parts_count_only_if_the_reward_is_dense() -> None:
    said = {"steps": result((4, 0.5), reward=3.0)}
    assert combine(rewards(), said).parts == []
    score = combine(rewards(dense="values"), said)
    assert (score.reward, score.parts) == (3.0, [(4, 0.5)])


def test_an_unscored_reward_is_ignored() -> None:
    gated = named(
        [
            RewardComponent(verifier="math"),
            RewardComponent.model_validate(
                {
                    "verifier": "steps",
                    "dense": "values",
                    "only_if": {"component": "math", "at_least": 1},
                }
            ),
        ]
    )
    assert earned(gated, {"math": result(reward=0.0)}) == []


def letters(ids: Sequence[int]) -> str:
    """Tokens 1, 2 and 3 spell `a`, `bb` and `ccc`; 0 is special."""
    return "".join(["", "a", "bb", "ccc"][i] for i in ids)


def test_a_parts_reward_goes_to_the_token_that_completes_it() -> None:
    tokens = [3, 1, 2, 0]  # cccabb
    assert text_ends(tokens, letters) == [3, 4, 6, 6]
    # Within the first token, at its end, within the third, at the end of the text and beyond it.
    found = token_rewards([(2, 1.0), (3, 2.0), (5, 4.0), (6, 8.0), (9, 16.0)], tokens, letters)
    assert found.tolist() == [3.0, 0.0, 12.0, 16.0]
    assert token_rewards([(1, 1.0)], [], letters).tolist() == []


def bytes_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, as in byte-level tokenizers."""
    from tokenizers.pre_tokenizers import ByteLevel

    vocabulary = {letter: i for i, letter in enumerate(sorted(ByteLevel.alphabet()))}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, eos_token="A"
    )


def test_a_character_of_several_tokens_belongs_to_the_last_token() -> None:
    tokenizer = bytes_tokenizer()
    ids = tokenizer("é 中x").input_ids
    assert len(ids) == 2 + 1 + 3 + 1

    def said(some: Sequence[int]) -> str:
        return str(tokenizer.decode(list(some), skip_special_tokens=True))

    assert text_ends(ids, said) == [0, 1, 2, 2, 2, 3, 4]
    # Bytes that never become a character: a part that ends there belongs to the last token.
    assert token_rewards([(2, 1.0), (3, 1.0)], ids[:5], said).tolist() == [0, 0, 1, 0, 1]


@pytest.mark.parametrize("garbage", [[0x80], [0xF0, 0x9F], [0xFF]])
def test_endless_partial_characters_are_decoded_in_linear_time(
    garbage: list[int],
) -> None:
    longest = 0

    def said(some: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(some))
        return bytes(some).decode(errors="replace")

    text = "a é"
    ids = [*text.encode(), *garbage * 500, *text.encode()]
    ends = text_ends(ids, said)
    assert longest <= 2 * LONGEST_CHARACTER
    assert ends == sorted(ends)
    assert ends[:4] == [1, 2, 2, 3]
    assert ends[-1] == len(said(ids))


def test_token_rewards_survive_the_wire() -> None:
    completions = [completion([3, 1], [1, 1], []), completion([2], [1], [])]
    scores = [
        combine(rewards(dense="values"), {"steps": result((4, 0.5))}),
        combine(rewards(dense="values"), {"steps": result()}),
    ]
    sampled = Sampled([9], completions, scores)
    group = decode(encode(assemble(ORIGIN, sampled, decode=letters)))
    assert group.token_rewards is not None
    assert group.token_rewards.tolist() == [0.0, 0.5, 0.0]
    assert decode(encode(assemble(ORIGIN, sampled))).token_rewards is None


def test_token_rewards_of_another_length_are_refused() -> None:
    scores = [combine(rewards(), {"steps": result()})]
    group = assemble(ORIGIN, Sampled([9], [completion([3], [1], [])], scores))
    group.token_rewards = np.zeros(2, np.float32)
    with pytest.raises(ValueError, match="token_rewards has 2 entries, lengths add up to 1"):
        encode(group)


RL = {
    "model": {"path": "org/model"},
    "data": {"dataset": "d"},
    "rewards": [{"verifier": "steps", "dense": "values"}],
}


def test_a_dense_reward_needs_an_advantage_that_sums_rewards_per_token() -> None:
    with pytest.raises(ConfigError, match="reward 'steps' is dense, and advantage group_zscore"):
        parse_config(RL)
    summing: list[dict[str, Any]] = [
        {"advantage": {"type": "gae"}, "critic": {}},
        {"advantage": {"type": "global_whiten"}},
    ]
    for algorithm in summing:
        config = parse_config(RL | {"algorithm": algorithm})
        assert config.model_dump()["rewards"][0]["dense"] == "values"


def test_a_dense_reward_with_the_calculator_is_refused() -> None:
    summing = {"algorithm": {"advantage": {"type": "global_whiten"}}}
    with pytest.raises(ConfigError, match=r"is dense, and with rollout\.episode calculator"):
        parse_config(RL | summing | {"rollout": {"episode": "calculator"}})
