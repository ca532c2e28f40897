"""Rows that several ranks share: the tokens and heads of each rank, and models that cannot be
shared. `tests/integration/learner/test_sharded.py` compares the gradients of real ranks."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from learner.distributed import Context, Ranks
from learner.errors import RunCannotGoOn, UnusableModel
from learner.model.attention.context_parallel import key_heads
from learner.model.attention.packed import use_packed_attention
from learner.model.passes.logprobs import packed_row
from learner.model.passes.microbatches import check_sharing
from tests.unit.learner.policies import tiny_model


@pytest.mark.parametrize(
    ("heads", "groups", "ranks", "expected"),
    [
        (8, 8, 2, [0, 1, 2, 3, 4, 5, 6, 7]),
        (8, 4, 2, [0, 1, 2, 3]),
        # Fewer key heads than ranks: two have the same.
        (8, 2, 4, [0, 0, 1, 1]),
        (4, 1, 4, [0, 0, 0, 0]),
        # The second rank's query heads read both: each query head gets a key head of its own.
        (6, 2, 3, [0, 0, 0, 1, 1, 1]),
    ],
)
def test_each_rank_has_the_key_heads_that_its_query_heads_read(
    heads: int, groups: int, ranks: int, expected: list[int]
) -> None:
    assert key_heads(heads, groups, ranks) == expected


def test_every_token_and_every_prediction_is_of_one_rank() -> None:
    sequences = [torch.arange(7), torch.arange(4)]
    masks = [torch.arange(7) >= 2, torch.arange(4) >= 1]
    found, predicted, sizes = [], [], []
    for rank in range(4):
        row = packed_row(sequences, masks, context=Context(rank, 4, None))
        part = row.part
        assert part is not None
        found += part.take(row.tokens).tolist()
        predicted += [
            (int(i), int(part.start + p)) for i, p in zip(part.chosen, part.predictors, strict=True)
        ]
        sizes.append(part.size)
    assert found == [*range(7), *range(4)]
    assert sorted(predicted) == list(enumerate(row.predictors.tolist()))
    assert max(sizes) - min(sizes) <= 1


def sharing(model: PreTrainedModel, size: int) -> str:
    """Return why `size` ranks cannot share rows of `model`."""
    ranks = Ranks(0, size, torch.device("cpu"), context=Context(0, size, None))
    with pytest.raises(UnusableModel) as raised:
        check_sharing(model, ranks)
    return str(raised.value)


def test_models_whose_rows_cannot_be_shared_are_refused() -> None:
    assert "has 2 attention heads, which 4 ranks cannot share" in sharing(tiny_model().model, 4)
    capped = tiny_model().model
    capped.config.attn_logit_softcapping = 30.0
    assert "training.context_parallel 2: LlamaForCausalLM caps its" in sharing(capped, 2)
    growing = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=9, num_hidden_layers=1, rope_parameters=growing, **sizes)
    )
    use_packed_attention(model)
    assert "(dynamic) depend on the longest position" in sharing(model, 2)


def test_a_size_that_does_not_divide_the_ranks_is_refused() -> None:
    with pytest.raises(RunCannotGoOn, match=r"training\.context_parallel 2 does not divide .* 3"):
        Ranks(0, 3, torch.device("cpu")).sharing_rows(2)
