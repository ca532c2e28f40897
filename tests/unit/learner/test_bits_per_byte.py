"""Bits per byte of validation rows: worked out by hand, and the same for every tokenizer."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from learner.batch.sft_rows import example
from learner.metrics.sft_metrics import validation_losses
from learner.model.passes.logprobs import PackedRow, TokenLogprobs
from learner.model.passes.microbatches import MicroBatches
from learner.supervised_loss import text_sums
from services.contracts.rows.dataset import Row
from tests.unit.learner.policies import tiny_model
from tests.unit.learner.test_sft_rows import ALONE, byte_tokenizer, made

SENTENCES = [Row(prompt="a b b"), Row(prompt="é"), Row(prompt="ab ab")]


def measured(policy: nn.Module, tokens: Any) -> dict[str, float]:
    rows = [example(made(row, tokens, train_on="all")) for row in SENTENCES]
    sums = text_sums(policy, rows, 1, MicroBatches(ALONE, 1000))
    return validation_losses(["d"], sums.tolist())


def test_bits_per_byte_of_three_sentences_are_those_worked_out_by_hand() -> None:
    """A uniform model of V tokens has log2 V bits per token. The sentences have 5, 2 and 5 bytes,
    and with `ab` as one token 5, 2 and 3 tokens. Each has an end of sequence, which is in the loss
    and not in the bits."""
    loaded, tokens = tiny_model(), byte_tokenizer((("a", "b"),))
    loaded.model.resize_token_embeddings(len(tokens), mean_resizing=False)
    torch.nn.init.zeros_(loaded.model.get_output_embeddings().weight)

    found = measured(TokenLogprobs(loaded.model), tokens)

    assert found["validation/loss"] == pytest.approx(math.log(len(tokens)), rel=1e-5)
    bits = (5 + 2 + 3) * math.log2(len(tokens)) / (5 + 2 + 5)
    assert found["validation/bits_per_byte"] == pytest.approx(bits, rel=1e-5)


class UniformBytes(nn.Module):
    """256 equally likely bytes: a token of n has the probability 256^-n."""

    def __init__(self, tokens: Any) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))
        texts = [tokens.convert_ids_to_tokens(i) for i in range(len(tokens))]
        self.bytes = torch.tensor(
            [0 if "<" in text and ">" in text else len(text) for text in texts]
        )

    def forward(self, row: PackedRow) -> tuple[torch.Tensor, None]:
        return -self.bytes[row.targets] * math.log(256), None


def test_bits_per_byte_are_the_same_for_two_tokenizers_of_one_model() -> None:
    whole = byte_tokenizer((("a", "b"), ("Ġ", "ab")))
    for tokens in (byte_tokenizer(), whole):
        found = measured(UniformBytes(tokens), tokens)
        assert found["validation/bits_per_byte"] == pytest.approx(8.0, rel=1e-6)
