"""A model that is made ready to train agrees with the sampler: its passes have no randomness, and
activations are recomputed if the config says so."""

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    MixtralConfig,
    MixtralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
)

from learner.model.compiling import make_trainable
from tests.unit.learner.policies import tiny_model

TOKENS = torch.tensor([[1, 5, 9, 7, 3, 2, 8, 4]])


def gpt2() -> PreTrainedModel:
    """With its default config: dropout of a tenth in three places."""
    return GPT2LMHeadModel(GPT2Config(vocab_size=22, n_embd=16, n_layer=2, n_head=2))


def opt() -> PreTrainedModel:
    """Has dropout in its blocks' own code, and drops whole blocks."""
    return OPTForCausalLM(
        OPTConfig(
            vocab_size=22,
            hidden_size=16,
            ffn_dim=24,
            word_embed_proj_dim=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            dropout=0.5,
            attention_dropout=0.5,
            layerdrop=0.5,
        )
    )


def mixtral() -> PreTrainedModel:
    """Its routers multiply their input with noise."""
    return MixtralForCausalLM(
        MixtralConfig(
            vocab_size=22,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            num_local_experts=4,
            router_jitter_noise=0.5,
        )
    )


@pytest.mark.parametrize("twice", [False, True], ids=["once", "activations twice"])
@pytest.mark.parametrize("make", [gpt2, opt, mixtral])
def test_no_pass_is_random_whatever_the_models_config_says(make: object, twice: bool) -> None:
    model: PreTrainedModel = make()  # type: ignore[operator]
    said = model.eval()(TOKENS).logits
    make_trainable(model, twice, compiled=None)

    for _ in range(3):
        torch.testing.assert_close(model(TOKENS, use_cache=False).logits, said)


def test_activations_are_recomputed_with_checkpointing() -> None:
    gradients, passes = [], []
    for twice in (False, True):
        model = tiny_model().model
        made: list[int] = []
        make_trainable(model, twice, compiled=None)
        for layer in model.model.layers:
            layer.mlp.register_forward_pre_hook(lambda *_, made=made: made.append(1))
        model(TOKENS).logits.square().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
        passes.append(len(made))
    blocks = model.config.num_hidden_layers
    assert passes == [blocks, 2 * blocks]
    for once, twice in zip(*gradients, strict=True):
        torch.testing.assert_close(once, twice)
