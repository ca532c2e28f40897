"""Tensors that a step never holds: log-probabilities, or logits, of a whole batch over the
vocabulary."""

from functools import partial
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

from learner.distributed import Ranks
from learner.model.head.output_head import CPU_VOCABULARY, head_logprobs
from learner.model.passes.logprobs import TokenLogprobs
from learner.model.passes.microbatches import MicroBatches
from learner.model.reference_policies import Copies, PolicyCopy
from learner.model.value_model import TokenValues, TrainedCritic
from learner.objective.compose import Objective
from learner.objective.value_loss import Moments
from learner.optim.optimizers import Optimizers
from learner.step import train_batch
from services.contracts.config.objective.algorithm import Algorithm
from services.contracts.config.objective.critic import Critic as CriticConfig
from services.contracts.config.objective.terms import GAE, RecomputeProximal, ReferenceKL
from services.contracts.config.optimizer import AdamW
from tests.unit.learner.policies import random_samples, state_of

ALONE = Ranks(0, 1, torch.device("cpu"))
WORDS = 10 * CPU_VOCABULARY
SIZES: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


class Largest(TorchDispatchMode):
    """Records the largest tensor that an operation makes, forward and backward."""

    elements = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **kwargs or {})
        sizes = [leaf.numel() for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor)]
        self.elements = max([self.elements, *sizes])
        return made


def model(seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**SIZES))


def valued() -> TrainedCritic:
    torch.manual_seed(2)
    config = LlamaConfig(**SIZES, num_labels=1)
    valued = LlamaForSequenceClassification(config)
    optimizers = Optimizers(valued, AdamW(lr=1e-3))
    return TrainedCritic(valued, TokenValues(valued), optimizers, CriticConfig(), Moments())


def largest_of_a_step() -> tuple[int, int]:
    """Return the number of tokens that a step of every kind of pass trains, and the size of the
    largest tensor."""
    samples = random_samples(groups=4, per_group=4)
    policy = model()
    with Largest() as largest:
        train_batch(
            state_of(
                TokenLogprobs(policy),
                Optimizers(policy, AdamW(lr=1e-3)),
                Copies(reference=PolicyCopy(TokenLogprobs(model(1)))),
                valued(),
            ),
            [samples],
            Objective(
                Algorithm(
                    proximal=RecomputeProximal(type="recompute"),
                    kl=ReferenceKL(type="k3", beta=0.1),
                    advantage=GAE(type="gae"),
                    critic=CriticConfig(),
                ),
                temperature=0.8,
                max_tokens=12,
            ),
            MicroBatches(ALONE, 10_000),
            lambda _: 1.0,
        )
    return sum(len(sample.sampler_logprobs) for sample in samples), largest.elements


def test_no_tensor_of_a_step_is_as_large_as_its_tokens_times_the_vocabulary() -> None:
    tokens, largest = largest_of_a_step()
    assert tokens * CPU_VOCABULARY <= largest < tokens * WORDS


def test_without_chunks_a_tensor_is_as_large_as_tokens_times_the_vocabulary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = partial(head_logprobs, vocabulary=WORDS)
    monkeypatch.setattr("learner.model.passes.logprobs.head_logprobs", whole)
    tokens, largest = largest_of_a_step()
    assert largest == tokens * WORDS
