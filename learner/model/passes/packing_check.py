"""Check that the learner may pack several sequences of a model into one row.

A model that looks beyond a sequence's ends would be trained on other probabilities than vLLM
samples from, and only `mismatch/kl` would show it.
"""

import torch
from transformers import PreTrainedModel

from learner.model.pass_weights import computing_in
from learner.model.passes.logprobs import hidden_states, packed_row

TOLERANCE = 0.01
"""Largest relative difference between a token's hidden states in the row and in its sequence alone.
Rounding makes at most 0.001, looking beyond the ends 0.1 or more."""
TOLERANCE_BFLOAT16 = 0.05
"""The same tolerance for bfloat16, whose rounding alone gives 0.01 to 0.02."""
LENGTHS = [2, 4, 4, 4]
"""Short, because some models look only at the last few tokens."""


@torch.no_grad()
def mixes_sequences(model: PreTrainedModel, autocast: torch.dtype | None = None) -> str | None:
    """Return why `model`, without dropout, cannot have packed rows, or None if it can. `autocast`:
    type of the training passes, whose attention on a GPU differs from float32's."""
    device, words = model.device, model.get_input_embeddings().num_embeddings
    sequences = ((torch.arange(sum(LENGTHS)) * 7 + 3) % words).split(LENGTHS)
    row = packed_row(
        [*sequences], [torch.zeros_like(s, dtype=torch.bool) for s in sequences], device
    )
    packed = hidden_states(model, row, autocast)
    with computing_in(model, autocast):
        alone = torch.cat(
            [
                model.base_model(input_ids=s[None].to(device), use_cache=False).last_hidden_state[0]
                for s in sequences
            ]
        )
    # The median, because in a mixture of experts rounding can send a token to another expert.
    difference = ((packed - alone).norm(dim=1) / alone.norm(dim=1)).median()
    rounds = torch.bfloat16 in (packed.dtype, autocast)
    if not difference > (TOLERANCE_BFLOAT16 if rounds else TOLERANCE):
        return None
    return (
        f"{type(model).__name__} mixes the sequences that the learner packs into one row: its "
        "layers carry a state from token to token, or its attention does not end where a sequence "
        "does; train another architecture"
    )
