"""A model that is made ready to train says what the sampler says: nothing in its passes is random,
and where activations are made twice, they are."""

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
    """As its config has it by default: a tenth is dropped in three places."""
    return GPT2LMHeadModel(GPT2Config(vocab_size=22, n_embd=16, n_layer=2, n_head=2))


def opt() -> PreTrainedModel:
    """Drops in its blocks' own code, and whole blocks."""
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
    """Its routers read what noise has been multiplied with."""
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


def test_activations_are_made_twice_where_that_saves_memory() -> None:
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
