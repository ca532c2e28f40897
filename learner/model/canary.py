"""Compute the policy's log-probabilities of the canary's sequences with the forward pass that
trains.

Each version costs one pass of 168 tokens. For a sharded model all ranks make the pass together.
"""

import torch
from torch import nn

from learner.model.loading.lora import BaseLogprobs
from learner.model.loading.model_loader import LoadedModel
from learner.model.passes.families import device_of, unwrapped
from learner.model.passes.logprobs import TokenLogprobs, packed_row
from services.contracts.canary import SHORTEST, Canary, packed, sequences


class CanaryPass:
    def __init__(self, loaded: LoadedModel, policy: nn.Module, context: int | None) -> None:
        """`policy`: see TrainingState; `context`: tokens of prompt and completion that vLLM
        accepts, None for the model's own limit."""
        self._loaded, self._policy = loaded, policy
        limits = [n for n in (context, loaded.max_length) if n is not None]
        # vLLM needs one more token: the one that it samples.
        self._longest = min(limits, default=1 << 20) - 1
        self._without_adapter = b""

    def __call__(self) -> Canary | None:
        """Return the canary of the current policy, or None if the model's context is too short. For
        a sharded policy all ranks call this together."""
        vocabulary = vocabulary_of(self._loaded)
        tokens = sequences(vocabulary, self._longest)
        if min(map(len, tokens), default=0) < SHORTEST:
            return None
        policy = unwrapped(self._policy)
        assert isinstance(policy, TokenLogprobs)
        if self._loaded.lora and not self._without_adapter:
            # The frozen weights never change.
            self._without_adapter = packed(scored(BaseLogprobs(policy), tokens))
        return Canary(
            dtype=self._loaded.publish_name,
            vocabulary=vocabulary,
            longest=self._longest,
            logprobs=packed(scored(policy, tokens)),
            without_adapter=self._without_adapter,
        )


def vocabulary_of(loaded: LoadedModel) -> int:
    """Return the number of token ids that both the tokenizer and the model know."""
    return min(len(loaded.tokenizer), loaded.model.config.get_text_config().vocab_size)


@torch.no_grad()
def scored(policy: TokenLogprobs | BaseLogprobs, tokens: list[list[int]]) -> list[float]:
    masks = [torch.arange(len(sequence)) > 0 for sequence in tokens]
    row = packed_row([torch.tensor(sequence) for sequence in tokens], masks, device_of(policy))
    logprobs, _ = policy(row)
    values: list[float] = logprobs.cpu().tolist()
    return values
