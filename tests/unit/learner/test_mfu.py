"""Model FLOPs utilisation, with hand-computed values."""

import pytest
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

from learner.batch.cost import TOKENS, SequenceCost
from learner.distributed import Ranks
from learner.model.passes.mfu import Work, sequence_cost, shape, work
from services.contracts.config.objective.algorithm import Algorithm
from services.contracts.config.objective.copies import LaggedProximal
from services.contracts.config.objective.terms import Proximal, RecomputeProximal, ReferenceKL
from services.estimate.devices import peak_flops

SMALL = {
    "vocab_size": 10,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def test_six_flops_a_weight_and_token_and_twelve_a_pair_of_tokens_that_attend() -> None:
    # One sequence of 100 tokens, one of 300: 6·1000·400 + 12·50·(100² + 300²) = 62.4 M FLOPs,
    # in 2 s on what can do 124.8 M a second.
    plain = Work(weights=1000, attention=50, forward=0, peak=124.8e6)
    assert plain.metrics(400, 100**2 + 300**2, 1, 2.0) == {"train/mfu": pytest.approx(0.25)}
    assert plain.metrics(400, 100**2 + 300**2, 2, 2.0) == {"train/mfu": pytest.approx(0.5)}
    # Two passes forward only: two thirds more.
    with_reference = Work(weights=1000, attention=50, forward=2, peak=124.8e6)
    assert with_reference.metrics(400, 100**2 + 300**2, 1, 2.0) == {
        "train/mfu": pytest.approx(0.25 * 5 / 3)
    }


def test_a_critic_counts_its_forward_pass_and_its_training_passes() -> None:
    # Trained twice, and once forward: 7/3 of 6·500·400 + 12·20·(100² + 300²) = 25.2 M FLOPs, plus
    # the policy's 62.4 M, in 1 s on a device with 484.8 M FLOP/s.
    both = Work(1000, 50, forward=0, peak=484.8e6, other=(500, 20), other_passes=2 + 1 / 3)
    expected = (62.4 + 25.2 * 7 / 3) / 484.8
    found = both.metrics(400, 100**2 + 300**2, 1, 1.0)
    assert found == {"train/mfu": pytest.approx(expected)}


def test_a_frozen_weight_has_no_gradient_to_count() -> None:
    # 62.4 M FLOPs as above, with gradients of all 1,000 weights, minus 2·900·400 = 0.72 M.
    lora = Work(weights=1000, attention=50, forward=0, peak=62.4e6, frozen=900)
    found = lora.metrics(400, 100**2 + 300**2, 1, 1.0)
    assert found == {"train/mfu": pytest.approx((62.4 - 0.72) / 62.4)}


def test_with_adapters_all_other_weights_are_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA L4")
    model = LlamaForCausalLM(LlamaConfig(**SMALL))
    ranks = Ranks(0, 1, torch.device("cuda", 0))
    whole = work(model, Algorithm(), ranks)
    for name, parameter in model.named_parameters():
        parameter.requires_grad = "k_proj" in name
    thin = work(model, Algorithm(), ranks)
    assert whole is not None
    assert thin is not None
    # Three layers' keys of 8·4 are left.
    assert (whole.frozen, thin.frozen) == (0, 1576 - 3 * 32)


def test_a_value_head_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA L4")
    policy = LlamaForCausalLM(LlamaConfig(**SMALL))
    critic = LlamaForSequenceClassification(LlamaConfig(**SMALL, num_labels=1))
    algorithm = Algorithm.model_validate(
        {"advantage": {"type": "gae"}, "critic": {}, "epochs_per_batch": 2}
    )
    found = work(policy, algorithm, Ranks(0, 1, torch.device("cuda", 0)), critic)
    assert found is not None
    # The weights below, with a head of 8 instead of 80.
    assert found.other == (1496 + 8, 3 * 4 * 2)
    assert found.other_passes == pytest.approx(7 / 3)


@pytest.mark.parametrize("tied", [True, False])
def test_an_embedding_counts_only_as_the_output_head(tied: bool) -> None:
    model = LlamaForCausalLM(LlamaConfig(**SMALL, tie_word_embeddings=tied))
    # A layer: q and o 8·8, k and v 8·4 (two heads of 2), three of the MLP 8·12, two norms of 8.
    # 3·(128 + 64 + 288 + 16) and the last norm, 8: 1,496. The head: 80.
    assert model.num_parameters() == 1576 + (0 if tied else 80)
    assert shape(model) == (1576, 3 * 4 * 2)


def test_only_the_experts_of_a_token_count() -> None:
    model = MixtralForCausalLM(MixtralConfig(**SMALL, num_local_experts=8, num_experts_per_tok=2))
    # The weights below without the MLP: 3·(128 + 64 + 16) and 8, and a head of 80. In each layer a
    # router of 8·8, and two of eight experts of 3·8·12.
    assert shape(model) == (3 * (208 + 64 + 2 * 288) + 8 + 80, 3 * 4 * 2)


@pytest.mark.parametrize(
    ("name", "teraflops"),
    [
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989),
        ("NVIDIA L40S", 362),
        ("NVIDIA L4", 121),
        ("NVIDIA GeForce RTX 4090", 165.2),
    ],
)
def test_the_peak_is_known_by_the_name_that_cuda_gives(name: str, teraflops: float) -> None:
    assert peak_flops(name) == teraflops * 1e12


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA H20",
        "NVIDIA GH200 480GB",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "AMD Instinct MI300X",
    ],
)
def test_an_unknown_device_has_an_unknown_peak(name: str) -> None:
    assert peak_flops(name) is None


@pytest.mark.parametrize(
    "proximal", [RecomputeProximal(type="recompute"), LaggedProximal(type="lagged")]
)
def test_forward_passes_and_devices_are_those_of_the_run(
    monkeypatch: pytest.MonkeyPatch, proximal: Proximal
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA L4")
    model = LlamaForCausalLM(LlamaConfig(**SMALL))
    algorithm = Algorithm(
        proximal=proximal,
        kl=ReferenceKL(type="k3", beta=0.1),
    )
    found = work(model, algorithm, Ranks(0, 4, torch.device("cuda", 0)))
    assert found is not None
    assert found.forward == 2
    assert found.peak == 4 * 121e12
    assert work(model, algorithm, Ranks(0, 4, torch.device("cpu"))) is None


def test_a_sequence_costs_what_its_tokens_are_multiplied_with() -> None:
    # A layer: 2·8·8 + 2·8·4 of attention, 3·8·12 of the MLP, two norms of 8; one norm after all.
    # 4 heads of 2 in 3 layers; of Gemma's layers two see 5 tokens.
    body, head = 3 * (192 + 288 + 16) + 8, 80
    assert sequence_cost(LlamaForCausalLM(LlamaConfig(**SMALL))) == SequenceCost(body, head, 24)
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    config = Gemma3TextConfig(**SMALL, head_dim=2, sliding_window=5, layer_types=kinds)
    found = sequence_cost(Gemma3ForCausalLM(config))
    assert (found.head, found.attention, found.windowed, found.window) == (80, 8, 16, 5)
    # Mistral lists no kinds: all layers have the window.
    found = sequence_cost(MistralForCausalLM(MistralConfig(**SMALL, sliding_window=5)))
    assert (found.attention, found.windowed, found.window) == (0, 24, 5)
    found = sequence_cost(MistralForCausalLM(MistralConfig(**SMALL, sliding_window=None)))
    assert (found.attention, found.windowed, found.window) == (24, 0, 0)


def test_a_model_whose_config_says_nothing_costs_by_its_tokens() -> None:
    model = LlamaForCausalLM(LlamaConfig(**SMALL))
    model.config.__dict__["num_attention_heads"] = None
    assert sequence_cost(model) == TOKENS
