"""Weights by hand: lengths 2 and 4 of prompt 0, 6 of prompt 1, nothing of prompt 2."""

import pytest
import torch

from learner.objective.aggregation import (
    Counts,
    Together,
    averaged_together,
    local_counts,
    sequence_weights,
)
from services.contracts.config.objective.terms import (
    Aggregation,
    ConstantLength,
    PromptMean,
    SequenceMean,
    TokenMean,
)

LENGTHS = torch.tensor([2, 4, 6, 0])
ALL = [True] * 4
TOGETHER = [Together(6, True), Together(6, False), Together(6, True), Together(0, False)]
CONFIGS: list[Aggregation] = [
    TokenMean(),
    SequenceMean(type="sequence_mean"),
    PromptMean(type="prompt_mean"),
    ConstantLength(type="constant"),
]


def test_sequences_without_tokens_in_the_loss_do_not_count() -> None:
    assert local_counts(LENGTHS, ALL, TOGETHER) == Counts(tokens=12, sequences=3, prompts=2)


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
    counts = local_counts(LENGTHS, ALL, TOGETHER)
    weights = sequence_weights(config, LENGTHS, TOGETHER, counts, max_tokens=10)
    assert weights.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("config", CONFIGS[:3], ids=lambda c: c.type)
def test_means_of_a_constant_loss_are_that_constant(config: Aggregation) -> None:
    weights = sequence_weights(config, LENGTHS, TOGETHER, local_counts(LENGTHS, ALL, TOGETHER), 10)
    assert float((weights * LENGTHS * 7.0).sum()) == pytest.approx(7.0)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.type)
def test_an_empty_batch_weighs_nothing(config: Aggregation) -> None:
    nothing = torch.tensor([0, 0])
    together = [averaged_together(config, number, (0, 0)) for number in (0, 1)]
    weights = sequence_weights(
        config, nothing, together, local_counts(nothing, [True] * 2, together), 10
    )
    assert weights.tolist() == [0.0, 0.0]


def test_chunks_of_a_prompt_count_as_prompts() -> None:
    # Chunks of two. Prompt 0: 2 + 4, 6; prompt 1: 3 + 0, 0 + 5. So there are four chunks.
    groups = ((2, 4, 6), (3, 0, 0, 5))
    config = PromptMean(type="prompt_mean", chunk=2)
    together = [averaged_together(config, i, group) for group in groups for i in range(len(group))]
    lengths = torch.tensor([length for group in groups for length in group])
    counts = local_counts(lengths, [True] * len(lengths), together)
    assert counts.prompts == 4
    weights = sequence_weights(config, lengths, together, counts, max_tokens=10)
    expected = [1 / 24, 1 / 24, 1 / 24, 1 / 12, 0, 0, 1 / 20]
    assert weights.tolist() == pytest.approx(expected, rel=1e-12)


def test_a_group_whose_samples_are_on_several_ranks_is_one_prompt() -> None:
    # The first of three samples does not train; the others are apart.
    config = CONFIGS[2]
    parts = [[averaged_together(config, number, (0, 2, 4))] for number in (1, 2)]
    counts = [
        local_counts(torch.tensor([length]), [True], part)
        for length, part in zip((2, 4), parts, strict=True)
    ]
    assert [one.prompts for one in counts] == [1, 0]
    weights = [
        float(sequence_weights(config, torch.tensor([length]), part, Counts(6, 2, 1), 10))
        for length, part in zip((2, 4), parts, strict=True)
    ]
    assert weights == pytest.approx([1 / 6, 1 / 6])
