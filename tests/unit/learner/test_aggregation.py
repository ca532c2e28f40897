"""Weights by hand: lengths 2 and 4 of prompt 0, 6 of prompt 1, nothing of prompt 2."""

import pytest
import torch

from learner.objective.aggregation import (
    Counts,
    averaged_together,
    local_counts,
    sequence_weights,
)
from services.contracts.config.terms import (
    Aggregation,
    ConstantLength,
    PromptMean,
    SequenceMean,
    TokenMean,
)

LENGTHS = torch.tensor([2, 4, 6, 0])
PROMPT = torch.tensor([0, 0, 1, 2])
CONFIGS: list[Aggregation] = [
    TokenMean(),
    SequenceMean(type="sequence_mean"),
    PromptMean(type="prompt_mean"),
    ConstantLength(type="constant"),
]


def test_sequences_without_tokens_in_the_loss_do_not_count() -> None:
    assert local_counts(LENGTHS, PROMPT) == Counts(tokens=12, sequences=3, prompts=2)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (CONFIGS[0], [1 / 12, 1 / 12, 1 / 12, 0]),
        (CONFIGS[1], [1 / 6, 1 / 12, 1 / 18, 0]),
        (CONFIGS[2], [1 / 12, 1 / 12, 1 / 12, 0]),
        (CONFIGS[3], [1 / 30, 1 / 30, 1 / 30, 0]),
    ],
    ids=lambda value: getattr(value, "type", ""),
)
def test_each_aggregation_weighs_tokens_by_its_formula(
    config: Aggregation, expected: list[float]
) -> None:
    counts = local_counts(LENGTHS, PROMPT)
    weights = sequence_weights(config, LENGTHS, PROMPT, counts, max_tokens=10)
    assert weights.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("config", CONFIGS[:3], ids=lambda c: c.type)
def test_means_of_a_constant_loss_are_that_constant(config: Aggregation) -> None:
    weights = sequence_weights(config, LENGTHS, PROMPT, local_counts(LENGTHS, PROMPT), 10)
    assert float((weights * LENGTHS * 7.0).sum()) == pytest.approx(7.0)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.type)
def test_an_empty_batch_weighs_nothing(config: Aggregation) -> None:
    nothing = torch.tensor([0, 0])
    weights = sequence_weights(config, nothing, nothing, local_counts(nothing, nothing), 10)
    assert weights.tolist() == [0.0, 0.0]


def test_chunks_of_a_prompt_count_as_prompts() -> None:
    # Chunks of two: samples 0, 1 and 2 of prompt 0, 0 and 3 of prompt 1; sample 1 of prompt 1 has
    # no loss. Tokens per chunk 2 + 4, 6, 3, 5; four chunks.
    group, number = torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([0, 1, 2, 0, 1, 3])
    lengths = torch.tensor([2, 4, 6, 3, 0, 5])
    config = PromptMean(type="prompt_mean", chunk=2)
    together = averaged_together(config, group, number)
    counts = local_counts(lengths, together)
    assert counts.prompts == 4
    weights = sequence_weights(config, lengths, together, counts, max_tokens=10)
    expected = [1 / 24, 1 / 24, 1 / 24, 1 / 12, 0, 1 / 20]
    assert weights.tolist() == pytest.approx(expected, rel=1e-12)


def test_without_chunks_a_prompt_is_averaged_whole() -> None:
    number = torch.tensor([0, 1, 0, 0])
    for config in CONFIGS:
        assert averaged_together(config, PROMPT, number).tolist() == PROMPT.tolist()
