"""A small mixture of experts, and made-up recorded routing for it."""

from dataclasses import replace

import torch
from transformers import PreTrainedModel, Qwen3MoeConfig, Qwen3MoeForCausalLM

from learner.batch.samples import ROUTER_CHOICE, TrainingSample
from learner.model.attention.packed import use_packed_attention

LAYERS, EXPERTS, USED = 3, 4, 2


def tiny_mixture(seed: int = 0) -> PreTrainedModel:
    """A Qwen3-MoE in float64 whose middle layer is dense. Its routers have clear preferences."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3MoeForCausalLM(
            Qwen3MoeConfig(
                vocab_size=22,
                hidden_size=16,
                intermediate_size=24,
                moe_intermediate_size=12,
                num_hidden_layers=LAYERS,
                num_attention_heads=2,
                num_key_value_heads=2,
                head_dim=8,
                num_experts=EXPERTS,
                num_experts_per_tok=USED,
                mlp_only_layers=[1],
                norm_topk_prob=True,
                max_position_embeddings=64,
                initializer_range=0.3,
            )
        )
    # Grouped products of matrices have no float64.
    model.set_experts_implementation("eager")
    use_packed_attention(model)
    return model.double()


def recorded(sample: TrainingSample, seed: int) -> TrainingSample:
    """The sample with recorded routing for all its tokens except the last, which went through no
    layer."""
    generator = torch.Generator().manual_seed(seed)
    chance = torch.rand(len(sample.tokens), LAYERS, EXPERTS, generator=generator)
    experts = chance.topk(USED).indices.to(torch.int16)
    experts[-1] = ROUTER_CHOICE
    return replace(sample, experts=experts)
