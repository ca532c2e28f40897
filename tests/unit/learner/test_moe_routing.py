"""Routers that replay recorded experts: their output, their gradients, and the models that are
refused."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    Ernie4_5_MoeConfig,
    MixtralConfig,
    OlmoeConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2MoeConfig,
    Qwen3MoeConfig,
)

from learner.batch.samples import ROUTER_CHOICE
from learner.model.moe.routing import Routing, UnknownRouters, expert_weights, policy_routing
from learner.model.passes.logprobs import TokenLogprobs, packed_row
from services.contracts.config.router import Router
from tests.unit.learner.experts import EXPERTS, LAYERS, USED, tiny_mixture
from tests.unit.learner.policies import tiny_model

SIZES: dict[str, Any] = {
    "vocab_size": 22,
    "hidden_size": 16,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
}
FAMILIES: dict[str, PreTrainedConfig] = {
    "mixtral": MixtralConfig(**SIZES, num_local_experts=4),
    "olmoe": OlmoeConfig(**SIZES, num_experts=4, norm_topk_prob=False),
    "qwen2": Qwen2MoeConfig(
        **SIZES, num_experts=4, moe_intermediate_size=12, shared_expert_intermediate_size=12
    ),
    "qwen3": Qwen3MoeConfig(**SIZES, num_experts=4, moe_intermediate_size=12, norm_topk_prob=True),
}
ROW = packed_row(
    [torch.tensor([4, 5, 6, 7, 8]), torch.tensor([9, 10, 11])],
    [torch.arange(5) >= 2, torch.arange(3) >= 1],
)


def told(model: PreTrainedModel, recorded: torch.Tensor | None) -> tuple[torch.Tensor, Routing]:
    """Log-probabilities of ROW's tokens if its tokens go to the `recorded` experts."""
    routing = Routing(model)
    logprobs, _ = TokenLogprobs(model, routing=routing)(replace(ROW, experts=recorded))
    return logprobs, routing


@pytest.mark.parametrize("family", FAMILIES)
def test_replaying_the_routers_own_choice_changes_nothing(family: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(FAMILIES[family])
    routing = Routing(model)
    everything = torch.arange(len(ROW.tokens))
    routing.begin(None, everything)
    plain = model(ROW.tokens[None], position_ids=ROW.positions[None], use_cache=False).logits
    routing.end()
    assert routing.routed is not None
    own = routing.routed.taken.transpose(0, 1)

    def again(experts: torch.Tensor) -> torch.Tensor:
        routing.begin(experts, everything)
        output = model(ROW.tokens[None], position_ids=ROW.positions[None], use_cache=False)
        return output.logits

    torch.testing.assert_close(again(own.flip(-1)), plain)
    # And other experts give other log-probabilities.
    assert not torch.allclose(again((own + 1) % 4), plain, atol=1e-5)


class Plain(nn.Module):
    """A router with nothing but its normalisation option."""

    def __init__(self, normalised: bool) -> None:
        super().__init__()
        self.norm_topk_prob = normalised


def test_experts_are_weighed_by_the_routers_own_logits_and_teach_it() -> None:
    # Probabilities 1/8, 2/8, 1/8, 4/8. With the first and the last expert: 1/5 and 4/5.
    logits = torch.tensor([[1.0, 2.0, 1.0, 4.0]], dtype=torch.float64).log().requires_grad_()
    weights = expert_weights(Plain(True), logits, torch.tensor([[0, 3]]))
    assert weights.tolist() == [[pytest.approx(0.2), pytest.approx(0.8)]]
    weights[0, 0].backward()
    # d w/d x: w·(1 − w) for its own logit, −w·w' for the other's. Unused experts have no gradient.
    assert logits.grad is not None
    assert logits.grad.tolist() == [pytest.approx([0.16, 0, 0, -0.16])]

    whole = expert_weights(Plain(False), logits, torch.tensor([[0, 3]]))
    assert whole.tolist() == [[pytest.approx(0.125), pytest.approx(0.5)]]


def by_hand(model: PreTrainedModel, tokens: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    """[t, V] logits of one sequence, in which each token goes to `experts` [t, layers, k], expert
    by expert as in the description of Qwen3-MoE."""
    inner = model.base_model
    hidden = inner.embed_tokens(tokens[None])
    positions = torch.arange(len(tokens))[None]
    rotary = inner.rotary_emb(hidden, positions)
    for number, layer in enumerate(inner.layers):
        normed = layer.input_layernorm(hidden)
        hidden = (
            hidden + layer.self_attn(normed, position_embeddings=rotary, attention_mask=None)[0]
        )
        normed = layer.post_attention_layernorm(hidden)
        if number == 1:
            hidden = hidden + layer.mlp(normed)
            continue
        every = (normed[0] @ layer.mlp.gate.weight.T).exp()
        rows = []
        for place, x in enumerate(normed[0]):
            chosen = experts[place, number].tolist()
            out = torch.zeros_like(x)
            for e in chosen:
                gate, up = (layer.mlp.experts.gate_up_proj[e] @ x).chunk(2)
                value = layer.mlp.experts.down_proj[e] @ (nn.functional.silu(gate) * up)
                out = out + every[place, e] / every[place, chosen].sum() * value
            rows.append(out)
        hidden = hidden + torch.stack(rows)[None]
    return model.lm_head(inner.norm(hidden))[0]


def routes(length: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    chance = torch.rand(length, LAYERS, EXPERTS, generator=generator)
    return chance.topk(USED).indices.to(torch.int16)


def gradients(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_forced_experts_are_those_of_the_forward_and_of_the_backward_pass() -> None:
    model = tiny_mixture()
    first, second = routes(5, 1), routes(3, 2)
    total = torch.zeros((), dtype=torch.float64)
    for tokens, experts, begin in ((ROW.tokens[:5], first, 2), (ROW.tokens[5:], second, 1)):
        every = by_hand(model, tokens, experts)[:-1].log_softmax(-1)
        total = total + every.gather(1, tokens[1:, None])[begin - 1 :].sum()
    total.backward()
    expected = gradients(model)
    model.zero_grad()

    logprobs, routing = told(model, torch.cat([first, second]))

    logprobs.sum().backward()
    # Norms of a transformer are computed in float32 whatever its type.
    torch.testing.assert_close(logprobs.sum(), total, rtol=1e-6, atol=0)
    largest = max(float(grad.abs().max()) for grad in expected.values())
    for name, grad in gradients(model).items():
        torch.testing.assert_close(grad, expected[name], rtol=0, atol=1e-6 * largest)
    routed = routing.routed
    assert routed is not None
    # Router output of the first and the last layer, at the predictors.
    taken = torch.cat([first, second])[ROW.predictors][:, [0, 2]].transpose(0, 1)
    assert torch.equal(routed.taken, taken.long())
    assert bool(routed.replayed.all())


def test_routers_choose_if_nothing_was_recorded() -> None:
    model = tiny_mixture()
    own, routing = told(model, None)
    assert routing.routed is not None
    assert not routing.routed.replayed.any()
    nothing = torch.full((len(ROW.tokens), LAYERS, USED), ROUTER_CHOICE, dtype=torch.int16)
    same, _ = told(tiny_mixture(), nothing)
    torch.testing.assert_close(same, own, rtol=1e-6, atol=0)
    # A last token went through no layer when it was sampled, so other tokens do not depend on its
    # experts.
    partly = torch.cat([routes(5, 1), routes(3, 2)])
    known, _ = told(tiny_mixture(), partly)
    partly[[4, 7]] = ROUTER_CHOICE
    assert torch.equal(told(tiny_mixture(), partly)[0], known)


def test_recomputed_activations_take_the_same_experts() -> None:
    found = []
    for again in (False, True):
        model = tiny_mixture().train()
        if again:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        told(model, torch.cat([routes(5, 1), routes(3, 2)]))[0].sum().backward()
        found.append(gradients(model))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_routing_of_another_model_is_refused() -> None:
    with pytest.raises(ValueError, match="has 2 layers of 2 experts, the model 3 of 2"):
        told(tiny_mixture(), torch.zeros(len(ROW.tokens), 2, USED, dtype=torch.int16))


@pytest.mark.parametrize("wanted", [{"replay": True}, {"aux_loss": 0.01}, {"z_loss": 0.001}])
def test_a_dense_model_has_nothing_to_balance_or_replay(wanted: dict[str, Any]) -> None:
    dense = tiny_model().model
    with pytest.raises(UnknownRouters, match=r"LlamaForCausalLM has no experts .* leave algorithm"):
        policy_routing(dense, Router(**wanted))
    assert policy_routing(dense, Router()) is None
    assert policy_routing(dense, Router(aux_loss=0, z_loss=0)) is None


def test_unknown_routers_are_refused_unless_nothing_is_asked_of_them() -> None:
    with torch.random.fork_rng():
        other = AutoModelForCausalLM.from_config(
            Ernie4_5_MoeConfig(
                vocab_size=22,
                hidden_size=16,
                intermediate_size=12,
                moe_intermediate_size=12,
                num_hidden_layers=2,
                num_attention_heads=2,
                num_key_value_heads=2,
                moe_num_experts=4,
                moe_k=2,
            )
        )
    # Its own config has a weight for the auxiliary loss.
    with pytest.raises(UnknownRouters, match=r"Ernie4_5_MoeForCausalLM.*aux_loss: 0"):
        policy_routing(other, Router())
    assert policy_routing(other, Router(aux_loss=0)) is None


def test_weights_are_the_models_own_unless_given() -> None:
    model = tiny_mixture()
    assert model.config.router_aux_loss_coef == 0.001
    own = policy_routing(model, Router())
    assert own is not None
    assert (own.aux_weight, own.z_weight) == (0.001, 0.0)
    given = policy_routing(model, Router(aux_loss=0, z_loss=0.002))
    assert given is not None
    assert (given.aux_weight, given.z_weight) == (0.0, 0.002)
