"""FLOPs of sequences, with values worked out by hand."""

import pytest

from learner.batch.cost import TOKENS, SequenceCost


def test_weights_take_two_flops_a_token_and_attention_four_a_pair_and_number() -> None:
    # 10 tokens: 2·100·10, and 55 pairs of 4·6. Then 5 more: 2·(100 + 30)·5, and 120 − 55 pairs.
    cost = SequenceCost(weights=100, head=30, attention=6)
    assert cost.prompt(10) == 2000 + 55 * 24
    assert cost.completion(10, 5) == 1300 + 65 * 24
    assert cost.sequence(10, 5) == 3300 + 120 * 24


def test_a_window_bounds_what_a_token_attends_to() -> None:
    # 1 + 2 + 3 + 3 + 3 pairs.
    cost = SequenceCost(weights=0, windowed=1, window=3)
    assert cost.prompt(5) == 4 * 12
    assert cost.prompt(2) == 4 * 3


@pytest.mark.parametrize(("shared", "prompts"), [(True, 1), (False, 2)])
def test_a_shared_prompt_is_computed_once(shared: bool, prompts: int) -> None:
    cost = SequenceCost(weights=7, head=3, attention=2, windowed=4, window=6)
    expected = prompts * cost.prompt(9) + cost.completion(9, 4) + cost.completion(9, 8)
    assert cost.samples(9, (4, 0, 8), shared) == expected


def test_an_untrained_completion_has_cost_zero() -> None:
    assert TOKENS.samples(9, (0, 0), shared=True) == 0
