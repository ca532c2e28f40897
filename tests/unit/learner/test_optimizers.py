"""Optimizers: moments of 8 bits, and updates made in the backward pass."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from learner.distributed import Ranks
from learner.errors import RunCannotGoOn
from learner.model.loading.scratch import make_model
from learner.model.passes.logprobs import TokenLogprobs
from learner.model.passes.microbatches import MicroBatches
from learner.model.value_model import TokenValues, TrainedCritic, train_critic
from learner.objective.compose import Objective
from learner.objective.value_loss import Moments
from learner.optim.optimizers import Config, Optimizers, check_optimizer
from learner.step import train_batch
from services.contracts.config import ConfigError, parse_config
from services.contracts.config.model import ScratchModel
from services.contracts.config.objective.algorithm import Algorithm
from services.contracts.config.objective.critic import Critic as CriticConfig
from services.contracts.config.optimizer import AdamW, AdamW8bit, MuonAdamW
from tests.unit.learner.policies import random_samples, state_of, tiny_critic, tiny_model
from tests.unit.learner.unigrams import ALONE

# Matrices of 64 · 64 = 4,096 entries, the fewest that are quantised.
WIDE = ScratchModel(
    source="scratch", hidden_size=64, layers=1, heads=2, intermediate_size=64, max_length=64
)
QUANTISED = "model.layers.0.mlp.up_proj.weight"
NORM = "model.norm.weight"
LR, B1, B2, EPS = 0.01, 0.9, 0.99, 1e-8
EIGHT = AdamW8bit(type="adamw_8bit", lr=LR, betas=(B1, B2), eps=EPS, max_grad_norm=None)


def with_gradients(model: Any, seed: int) -> dict[str, torch.Tensor]:
    """Gives each parameter a gradient. Returns that of the quantised one in float64."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    return {n: p.grad.double() for n, p in model.named_parameters()}


def meaning(state: dict[str, torch.Tensor], entry: str) -> torch.Tensor:
    """The values of a moment's codes, in float64."""
    codes, scale, qmap = (
        state[f"{QUANTISED}/{entry}.{part}"] for part in ("codes", "scale", "qmap")
    )
    values = qmap.double()[codes.long()].view(-1, 256) * scale.double()[:, None]
    return values.view(codes.shape)


def test_moments_of_8_bits_are_near_those_of_adam_and_are_what_the_next_update_uses() -> None:
    model = make_model(WIDE, 0).model
    weight = model.get_parameter(QUANTISED)
    optimizers = Optimizers(model, EIGHT)
    w = weight.detach().double()
    g = with_gradients(model, 1)[QUANTISED]
    optimizers.step()
    # The first update is Adam's, whose corrected moments are g and g².
    w = w - LR * g / (g.abs() + EPS)
    torch.testing.assert_close(weight.double(), w, rtol=0, atol=1e-6)
    m, v = (1 - B1) * g, (1 - B2) * g.square()
    state = optimizers.tensors()
    for exact, found in ((m, meaning(state, "exp_avg")), (v, meaning(state, "exp_avg_sq"))):
        # Codes are at most 0.9/64 of a block's largest entry apart.
        largest = exact.view(-1, 256).abs().amax(1)
        missed = (found - exact).view(-1, 256).abs().amax(1)
        assert bool((missed > 0).all())
        assert bool((missed < largest / 128 * 1.001).all())

    m, v = meaning(state, "exp_avg"), meaning(state, "exp_avg_sq")
    g = with_gradients(model, 2)[QUANTISED]
    optimizers.step()
    m, v = B1 * m + (1 - B1) * g, B2 * v + (1 - B2) * g.square()
    w = w - LR * (m / (1 - B1**2)) / ((v / (1 - B2**2)).sqrt() + EPS)
    torch.testing.assert_close(weight.double(), w, rtol=0, atol=1e-5)


def test_a_moment_takes_a_byte_an_entry_and_a_scale_a_block() -> None:
    model = make_model(WIDE, 0).model
    optimizers = Optimizers(model, EIGHT)
    with_gradients(model, 1)
    optimizers.step()
    state = optimizers.state()
    sizes = {part: state[f"{QUANTISED}/exp_avg.{part}"].nbytes for part in ("codes", "scale")}
    assert sizes == {"codes": 4096, "scale": 4096 // 256 * 4}
    # Small ones keep 32 bits.
    assert state[f"{NORM}/exp_avg"].dtype == torch.float32


def test_weight_decay_of_8_bit_adam_is_that_of_matrices_alone() -> None:
    model = make_model(WIDE, 0).model
    matrix, vector = model.get_parameter(QUANTISED), model.get_parameter(NORM)
    before, kept = matrix.detach().clone(), vector.detach().clone()
    optimizers = Optimizers(model, EIGHT.model_copy(update={"weight_decay": 0.5}))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    assert optimizers.set_lr(0.5) == pytest.approx(LR / 2)
    optimizers.step()
    torch.testing.assert_close(matrix.detach(), before * (1 - LR / 2 * 0.5))
    assert torch.equal(vector, kept)


def test_8_bit_moments_go_on_from_a_file_exactly_and_what_was_captured_stays(
    tmp_path: Path,
) -> None:
    model = make_model(WIDE, 0).model
    optimizers = Optimizers(model, EIGHT)
    with_gradients(model, 1)
    optimizers.step()
    captured, weights = optimizers.tensors(), {n: p.clone() for n, p in model.state_dict().items()}
    with_gradients(model, 2)
    optimizers.step()
    # Written only now: the step in between must not have changed it.
    save_file(captured, tmp_path / "state.safetensors")

    again = make_model(WIDE, 1).model
    again.load_state_dict(weights)
    resumed = Optimizers(again, EIGHT)
    resumed.load(load_file(tmp_path / "state.safetensors"))
    with_gradients(again, 2)
    resumed.step()
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]), name
    found, expected = resumed.tensors(), optimizers.tensors()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in found)


PLAIN: list[Config] = [
    AdamW(lr=1e-2, weight_decay=0.1, max_grad_norm=None),
    EIGHT,
    MuonAdamW(type="muon", lr=1e-2, max_grad_norm=None),
]


def trained(config: Config, budget: int) -> tuple[dict[str, torch.Tensor], list[dict[str, float]]]:
    """Weights after four updates, and the metrics of the two batches."""
    model = make_model(WIDE, 0).model
    optimizers = Optimizers(model, config)
    metrics = [
        train_batch(
            state_of(TokenLogprobs(model), optimizers),
            [random_samples(groups=3, per_group=3, seed=step + 10 * part) for part in (0, 1)],
            Objective(Algorithm(minibatches=2), 0.8, 12),
            MicroBatches(ALONE, budget),
            lambda number: 1 / (number + 1),
        )
        for step in (0, 1)
    ]
    return {n: p.detach() for n, p in model.named_parameters()}, metrics


@pytest.mark.parametrize("budget", [10_000, 60], ids=["one pass", "several passes"])
@pytest.mark.parametrize("config", PLAIN, ids=lambda c: c.type)
def test_updates_in_the_backward_pass_are_those_after_it(config: Config, budget: int) -> None:
    expected, rows = trained(config, budget)
    weights, found = trained(config.model_copy(update={"in_backward": True}), budget)
    for name, weight in weights.items():
        assert torch.equal(weight, expected[name]), name
    for row, wanted in zip(found, rows, strict=True):
        assert row == pytest.approx(wanted, rel=1e-5)
        assert row["train/grad_norm"] > 0


def test_no_more_than_one_gradient_is_there_at_a_time() -> None:
    model = tiny_model().model
    optimizers = Optimizers(model, AdamW(max_grad_norm=None, in_backward=True))
    seen: list[int] = []

    def count(*_: Any) -> None:
        seen.append(sum(parameter.grad is not None for parameter in model.parameters()))

    for part in optimizers.parts:
        part.register_step_pre_hook(count)
    train_batch(
        state_of(TokenLogprobs(model), optimizers),
        [random_samples(groups=3, per_group=3)],
        Objective(Algorithm(), 0.8, 12),
        MicroBatches(ALONE, 10_000),
        lambda _: 1.0,
    )
    assert seen == [1] * len(list(model.parameters()))


def test_a_weight_whose_gradient_is_not_finite_stays_and_the_others_go_on() -> None:
    model = tiny_model().model
    optimizers = Optimizers(model, AdamW(lr=0.1, max_grad_norm=None, in_backward=True))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizers.last_pass()
    broken, whole = model.lm_head.weight, model.model.norm.weight
    (broken.sum() * float("inf") + 3 * whole.sum()).backward()
    assert optimizers.step() == float("inf")
    assert torch.equal(broken, before["lm_head.weight"])
    torch.testing.assert_close(whole.detach(), before["model.norm.weight"] - 0.1)


def test_a_critic_can_be_updated_in_its_backward_pass() -> None:
    def after(in_backward: bool) -> dict[str, torch.Tensor]:
        model = tiny_critic()
        optimizers = Optimizers(model, AdamW(lr=0.1, max_grad_norm=None, in_backward=in_backward))
        critic = TrainedCritic(model, TokenValues(model), optimizers, CriticConfig(), Moments())
        samples = random_samples(groups=2, per_group=3)
        for sample in samples:
            k = len(sample.sampler_logprobs)
            sample.values, sample.returns = torch.zeros(k + 1), torch.linspace(0, 1, k)
        algorithm = Algorithm.model_validate({"advantage": {"type": "gae"}, "critic": {}})
        train_critic(critic, [samples], algorithm, MicroBatches(ALONE, 40), lambda _: 1.0)
        return {name: p.detach() for name, p in model.named_parameters()}

    expected, found = after(False), after(True)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_several_ranks_cannot_update_before_their_gradients_are_summed() -> None:
    two = Ranks(0, 2, torch.device("cpu"))
    config = AdamW(max_grad_norm=None, in_backward=True)
    with pytest.raises(RunCannotGoOn, match=r"optimizer\.in_backward updates .* of the 2 ranks"):
        check_optimizer(config, "optimizer", two, sharded=False)
    check_optimizer(config, "optimizer", ALONE, sharded=False)
    check_optimizer(config, "optimizer", two, sharded=True)
    check_optimizer(AdamW(), "optimizer", two, sharded=False)


def test_blocks_of_8_bit_moments_are_not_sharded() -> None:
    two, config = Ranks(0, 2, torch.device("cpu")), AdamW8bit(type="adamw_8bit")
    with pytest.raises(RunCannotGoOn, match=r"optimizer\.type adamw_8bit .* use adamw, .* or ddp"):
        check_optimizer(config, "optimizer", two, sharded=True)
    check_optimizer(config, "optimizer", two, sharded=False)


RL: dict[str, Any] = {
    "model": {"path": "org/model"},
    "data": {"dataset": "d"},
    "rewards": [{"verifier": "math"}],
    "sampling": {"max_tokens": 16},
    "optimizer": {"type": "adamw_8bit", "in_backward": True, "max_grad_norm": None},
    "algorithm": {"prompts_per_step": 5, "minibatches": 2, "samples_per_prompt": 4},
    "rollout": {"vllm": {"max_model_len": 100}},
    # Three prompts of four sequences of 100 tokens.
    "training": {"tokens_per_microbatch": 1200},
}


def test_updates_in_the_backward_pass_are_accepted_if_a_minibatch_fits() -> None:
    assert parse_config(RL).optimizer.in_backward


@pytest.mark.parametrize(
    ("changes", "path", "said"),
    [
        (
            {"optimizer": {"in_backward": True}},
            "optimizer",
            "max_grad_norm 1 needs all gradients at once, and in_backward frees them one by one",
        ),
        (
            {"training": {"tokens_per_microbatch": 1199}},
            "",
            "a minibatch of 12 sequences of up to 100 tokens does not fit "
            "training.tokens_per_microbatch 1199: raise that or algorithm.minibatches",
        ),
        ({"rollout": {}}, "", "set rollout.vllm.max_model_len"),
        (
            {"algorithm": RL["algorithm"] | {"early_stop_kl": 0.1}},
            "",
            "optimizer.in_backward updates before algorithm.early_stop_ratio",
        ),
        (
            {
                "optimizer": {},
                "rollout": {},
                "algorithm": {
                    "advantage": {"type": "gae"},
                    "critic": {"optimizer": RL["optimizer"]},
                },
            },
            "",
            "algorithm.critic.optimizer.in_backward needs minibatches that fit one micro-batch",
        ),
    ],
)
def test_updates_in_the_backward_pass_are_refused_if_they_are_impossible(
    changes: dict[str, Any], path: str, said: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config(RL | changes)
    ((key, sentence),) = refused.value.problems
    assert key == path
    assert said in sentence


def test_supervised_training_adds_up_gradients() -> None:
    raw = {
        "type": "sft",
        "model": {"source": "scratch"},
        "data": {"dataset": "d"},
        "optimizer": {"type": "muon", "in_backward": True, "max_grad_norm": None},
    }
    with pytest.raises(ConfigError, match="which a supervised run has: leave it out"):
        parse_config(raw)


def test_with_bfloat16_weights_gradients_and_moments_are_float32() -> None:
    """An update of 1e-6 is less than half the distance of two bfloat16 numbers near 1."""
    model = tiny_model().model
    optimizers = Optimizers(model, AdamW(lr=1e-6))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    policy = TokenLogprobs(model, torch.bfloat16)
    goal = Objective(Algorithm(), 0.8, 12)
    batch = [random_samples(groups=3, per_group=3)]
    train_batch(state_of(policy, optimizers), batch, goal, MicroBatches(ALONE, 1000), lambda _: 1.0)
    assert {tensor.dtype for tensor in optimizers.state().values()} == {torch.float32}
    for name, parameter in model.named_parameters():
        assert parameter.dtype == torch.float32
        assert not torch.equal(parameter.detach(), before[name]), name


def test_imports_write_nothing_to_the_learners_log() -> None:
    command = [sys.executable, "-c", "import learner.rl, torchao"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_each_group_of_nanochats_has_its_rate_and_decay() -> None:
    model = tiny_model().model
    config = MuonAdamW(
        type="muon",
        lr=0.02,
        adamw_lr=0.003,
        embedding_lr=0.2,
        unembedding_lr=0.004,
        scalar_lr=0.5,
        initial_lr_fraction=0.5,
        weight_decay=0.1,
        embedding_weight_decay=0.001,
        unembedding_weight_decay=0.01,
    )
    optimizers = Optimizers(model, config)
    found = {
        optimizers.names[parameter]: (group["lr"], group["weight_decay"])
        for part in optimizers.parts
        for group in part.param_groups
        for parameter in group["params"]
    }
    assert found["model.embed_tokens.weight"] == (0.1, 0.001)
    assert found["lm_head.weight"] == (0.002, 0.01)
    assert found["model.norm.weight"] == (0.25, 0.0)
    assert found["model.layers.0.self_attn.q_proj.weight"] == (0.01, 0.1)


@pytest.mark.parametrize(("batch", "momentum"), [(0, 0.85), (150, 0.9), (300, 0.95), (999, 0.95)])
def test_muons_momentum_rises_to_its_end(batch: int, momentum: float) -> None:
    optimizers = Optimizers(tiny_model().model, MuonAdamW(type="muon", momentum_start=0.85))
    optimizers.set_momentum(batch)
    assert optimizers.parts[0].param_groups[0]["momentum"] == pytest.approx(momentum)
