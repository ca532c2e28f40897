"""A rank of a learner whose models are sharded, or whole on a single rank. It computes gradients,
updates and checkpoint content for the same batch on any number of ranks.

`sharded_ranks.py OUTPUT CHECK…`: rank 0 writes the results of the checks (functions here) to OUTPUT
as safetensors, by their names. CHECK/N: N ranks share each row.
"""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from learner.batch.samples import TrainingSample
from learner.checkpoints.captured import capture
from learner.distributed import Ranks, start_ranks, stop_ranks
from learner.model.attention.packed import use_packed_attention
from learner.model.canary import CanaryPass
from learner.model.compiling import make_trainable
from learner.model.loading.lora import (
    BaseLogprobs,
    adapter_tensors,
    add_adapters,
    save_adapter_config,
)
from learner.model.loading.model_loader import LoadedModel, load_critic, load_model, unfit
from learner.model.loading.saving import as_in_a_folder, on_host, save_description, weight_tensors
from learner.model.moe.routing import Routing
from learner.model.passes import families
from learner.model.passes.logprobs import TokenLogprobs, packed_row
from learner.model.passes.microbatches import MicroBatches, check_sharing
from learner.model.placement.offload import Offload
from learner.model.placement.parallel import gathered, replicate, shard
from learner.model.reference_policies import Copies, Following, PolicyCopy
from learner.model.value_model import TokenValues, TrainedCritic
from learner.objective.compose import Objective
from learner.objective.value_loss import Moments
from learner.optim.optimizers import Config, Optimizers
from learner.publishing.mirror import Mirror
from learner.publishing.versions import Versions, host_weights
from learner.slices import WHOLE, local, rows_of, whole
from learner.state import TrainingProgress, TrainingState
from learner.step import accumulate_gradients, train_batch
from services.contracts.canary import unpacked
from services.contracts.config.lora import LoRA
from services.contracts.config.model import PretrainedModel
from services.contracts.config.objective.algorithm import Algorithm
from services.contracts.config.objective.critic import Critic as CriticConfig
from services.contracts.config.objective.terms import ReferenceKL
from services.contracts.config.optimizer import AdamW, MuonAdamW
from services.contracts.weights import ADAPTER_WEIGHTS
from tests.unit.learner.experts import recorded, tiny_mixture
from tests.unit.learner.policies import random_samples, tiny_critic, tiny_model
from tests.unit.learner.test_shared_prompts import exact

GROUPS, BUDGET = 5, 60
Found = dict[str, torch.Tensor]
P = TypeVar("P", TokenLogprobs, TokenValues)
STEPS = 2
PPO: dict[str, Any] = {
    "advantage": {"type": "gae"},
    "critic": {},
    "proximal": {"type": "lagged", "every": 1},
    "kl": {"type": "k3", "beta": 0.1, "reference": {"type": "ema", "rate": 0.5}},
}


def passes(module: P, ranks: Ranks, compute: torch.dtype | None = None) -> P:
    """Make `module` ready to train: sharded if there are several ranks."""
    if ranks.size > 1:
        shard(module, module.model, compute, ranks)
    return module


def share_of(ranks: Ranks) -> list[TrainingSample]:
    """This rank's samples. Ranks have unequal numbers of samples, and so of micro-batches."""
    samples = random_samples(groups=GROUPS, per_group=4)
    for sample in samples:
        sample.reference_logprobs = sample.sampler_logprobs - 0.1
    generator = torch.Generator().manual_seed(0)
    dealt = torch.randint(ranks.parts, (len(samples),), generator=generator).tolist()
    return [s for s, part in zip(samples, dealt, strict=True) if part == ranks.part]


def objective(**algorithm: Any) -> Objective:
    given = algorithm or {"kl": ReferenceKL(type="k3", beta=0.1)}
    return Objective(Algorithm.model_validate(given), 0.8, 12)


def gradients(policy: TokenLogprobs, ranks: Ranks) -> Found:
    """Gradients of one minibatch, by the names of the model."""
    return gradients_of(policy, share_of(ranks), ranks)


def gradients_of(policy: TokenLogprobs, mine: list[TrainingSample], ranks: Ranks) -> Found:
    accumulate_gradients(policy, mine, objective(), MicroBatches(ranks, BUDGET))
    named = policy.model.named_parameters()
    return {name: whole(p.grad) for name, p in named if p.grad is not None}


def of_policy(ranks: Ranks) -> Found:
    return gradients(passes(TokenLogprobs(tiny_model().model.double()), ranks), ranks)


def of_policy_in_float32(ranks: Ranks) -> Found:
    return gradients(passes(TokenLogprobs(tiny_model().model), ranks), ranks)


def of_tied_policy(ranks: Ranks) -> Found:
    model = tiny_model().model.double()
    model.config.tie_word_embeddings = True
    model.tie_weights()
    found = gradients(passes(TokenLogprobs(model), ranks), ranks)
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert "lm_head.weight" not in found
    return found


def of_policy_that_recomputes(ranks: Ranks) -> Found:
    model = tiny_model().model.double()
    make_trainable(model, checkpointing=True, compiled=None)
    return gradients(passes(TokenLogprobs(model), ranks), ranks)


def of_long_rows(ranks: Ranks) -> Found:
    """Grouped heads, windows, shared prompts, recomputed activations; every rank has all
    weights."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=22,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        layer_types=["full_attention", "sliding_attention"],
        sliding_window=5,
    )
    # A norm that rounds would show whether a prompt is computed once or twice.
    model = exact(Qwen3ForCausalLM(config))
    use_packed_attention(model)
    make_trainable(model, checkpointing=True, compiled=None)
    check_sharing(model, ranks)
    mine = share_of(ranks)
    for sample in mine:
        # All samples have the same prompt and different answers.
        prompt = int(sample.loss_mask.int().argmax()) or 2
        sample.tokens[:prompt] = torch.arange(4, 4 + prompt)
    policy = replicate(TokenLogprobs(model), ranks)
    with patch.multiple(families, CPU_MERGE=0, CPU_LEAST=1):
        accumulate_gradients(policy, mine, objective(), MicroBatches(ranks, BUDGET))
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def of_bfloat16(ranks: Ranks) -> Found:
    model = tiny_model().model
    compute = torch.bfloat16
    policy = TokenLogprobs(model, None if ranks.size > 1 else compute)
    found = gradients(passes(policy, ranks, compute), ranks)
    assert {grad.dtype for grad in found.values()} == {torch.float32}
    return found


def of_adapters(ranks: Ranks) -> Found:
    """Gradients of adapters after a pass of the reference, which is the same model without them."""
    loaded = tiny_model()
    add_adapters(loaded, LoRA(rank=2), 0)
    generator = torch.Generator().manual_seed(1)
    for tensor in adapter_tensors(loaded.model).values():
        tensor.copy_(0.1 * torch.randn(tensor.shape, generator=generator))
    inner = TokenLogprobs(loaded.model.double())
    policy = passes(inner, ranks)
    sample = random_samples(groups=1, per_group=1)[0]
    with torch.no_grad():
        BaseLogprobs(inner)(packed_row([sample.tokens], [sample.loss_mask]))
    return gradients(policy, ranks)


def of_replayed_experts(ranks: Ranks) -> Found:
    """Gradients with the routers' loss, which counts recorded experts."""
    mixture = tiny_mixture()
    routing = Routing(mixture, aux_weight=0.5, z_weight=0.05)
    policy = passes(TokenLogprobs(mixture, routing=routing), ranks)
    mine = [recorded(sample, len(sample.tokens)) for sample in share_of(ranks)]
    return gradients_of(policy, mine, ranks)


def canary(ranks: Ranks) -> Found:
    """Gradients of a policy with adapters."""
    loaded = tiny_model()
    add_adapters(loaded, LoRA(rank=2), 0)
    generator = torch.Generator().manual_seed(1)
    for tensor in adapter_tensors(loaded.model).values():
        tensor.copy_(0.1 * torch.randn(tensor.shape, generator=generator))
    made = CanaryPass(loaded, passes(TokenLogprobs(loaded.model), ranks), None)()
    assert made is not None
    values = unpacked(made.logprobs), unpacked(made.without_adapter)
    return {str(i): torch.tensor(value) for i, value in enumerate(values)}


def of_mixture(ranks: Ranks) -> Found:
    """Gradients with the routers' loss, which counts experts in passes without gradient."""
    mixture = tiny_mixture()
    routing = Routing(mixture, aux_weight=0.5, z_weight=0.05)
    return gradients(passes(TokenLogprobs(mixture, routing=routing), ranks), ranks)


def trained(
    ranks: Ranks, model: PreTrainedModel, config: Config, offloaded: bool = False, **algorithm: Any
) -> Found:
    """The content of a checkpoint after STEPS batches."""
    loaded = LoadedModel(model, None, torch.float32)
    policy = TokenLogprobs(model)
    passes(policy, ranks)
    state = TrainingState(loaded, policy, Optimizers(model, config), progress())
    if algorithm:
        state.copies = Copies(*(copy_of(ranks, rate, offloaded) for rate in (0.5, 1.0)))
        state.critic = critic(ranks, offloaded)
    if offloaded:
        state.offloads = (Offload(lambda: state.optimizers.state().values()),)
    for _ in range(STEPS):
        parts = [share_of(ranks)]
        metrics = train_batch(
            state,
            parts,
            objective(**algorithm),
            MicroBatches(ranks, BUDGET_WHOLE if config.in_backward else BUDGET),
            lambda _: 1.0,
        )
        state.progress = replace(state.progress, step=state.progress.step + 1)
        state.copies.after_step(state.progress.step, model)
    captured = capture(state)
    found = {f"weights {name}": tensor for name, tensor in captured.weights.items()}
    found |= {f"optimizer {name}": tensor for name, tensor in captured.optimizer.items()}
    for name, tensors in captured.copies.items():
        found |= {f"{name} {key}": tensor for key, tensor in tensors.items()}
    if captured.critic:
        found |= {f"critic {name}": tensor for name, tensor in captured.critic.weights.items()}
        found |= {f"moments {name}": t for name, t in captured.critic.optimizer.items()}
    kept = ("grad_norm", "loss", "kl", "ratio_mean", "value_mean")
    found |= {
        f"metric {name}": torch.tensor(value, dtype=torch.float64)
        for name, value in metrics.items()
        if name.partition("/")[2] in kept
    }
    return found


BUDGET_WHOLE = 10_000


def progress() -> TrainingProgress:
    return TrainingProgress("r", 0, 0, [("a", 0)], "base")


def copy_of(ranks: Ranks, rate: float, offloaded: bool) -> PolicyCopy:
    """A copy of the policy that follows it."""
    model = tiny_model(seed=1).model.double().eval().requires_grad_(False)
    logprobs = TokenLogprobs(model)
    passes(logprobs, ranks)
    copy = PolicyCopy(logprobs, Following(rate=rate))
    if offloaded:
        copy.offload = Offload(model.parameters)
    return copy


def critic(ranks: Ranks, offloaded: bool) -> TrainedCritic:
    model = tiny_critic().double()
    values = TokenValues(model)
    passes(values, ranks)
    optimizers = Optimizers(model, AdamW(lr=1e-2))
    made = TrainedCritic(model, values, optimizers, CriticConfig(), Moments())
    if offloaded:
        made.offloaded_weights = (Offload(model.parameters),)
        made.offloaded_state = (Offload(lambda: optimizers.state().values()),)
    return made


def published(ranks: Ranks) -> Found:
    """The weights as a learner publishes them from each step's changes, including experts of which
    ranks hold slices."""
    mixture = tiny_mixture().float()
    loaded = LoadedModel(mixture, None, torch.bfloat16)
    passes(TokenLogprobs(mixture), ranks)
    versions = Versions(loaded, ranks, "auto")
    assert versions.compares
    mirror = Mirror(versions.take(0, 0.0).tensors)
    for step in range(2):
        generator = torch.Generator().manual_seed(step)
        for weight in weight_tensors(mixture).values():
            few = torch.rand(weight.shape, generator=generator) < 0.02
            mine = rows_of(2 * whole(weight) + 1, weight)
            marks = rows_of(few, weight)
            local(weight).copy_(torch.where(local(marks), local(mine), local(weight)))
        changed = versions.take(step + 1, 0.0)
        if ranks.first:
            assert changed.changes is not None
            mirror.change(changed.changes, "a:0", "a:1")
    now = host_weights(loaded, 2, 0.0, WHOLE if ranks.first else None).tensors
    for name, tensor in mirror.tensors.items():
        assert torch.equal(tensor, now[name]), name
    return mirror.tensors


def with_everything(ranks: Ranks) -> Found:
    return trained(ranks, tiny_model().model.double(), AdamW(lr=1e-2, max_grad_norm=0.1), **PPO)


def with_everything_offloaded(ranks: Ranks) -> Found:
    config = AdamW(lr=1e-2, max_grad_norm=0.1)
    return trained(ranks, tiny_model().model.double(), config, offloaded=True, **PPO)


def with_muon(ranks: Ranks) -> Found:
    config = MuonAdamW(type="muon", lr=1e-2, weight_decay=0.1)
    return trained(ranks, tiny_model().model.double(), config)


def in_backward(ranks: Ranks) -> Found:
    config = AdamW(lr=1e-2, max_grad_norm=None, in_backward=True)
    return trained(ranks, tiny_model().model.double(), config)


def as_loaded(ranks: Ranks) -> Found:
    """Models read from folders, each rank its rows: policies (one with tied weights, one with a
    folder of single experts), the frozen base of adapters, a critic; and one model that is read
    whole, to merge an adapter."""
    mixture, tied = tiny_mixture().float(), tiny_model()
    tied.model.config.tie_word_embeddings = True
    tied.model.tie_weights()
    folders = {
        "mixture": saved(ranks, "mixture", LoadedModel(mixture, tied.tokenizer, torch.float32)),
        "tied": saved(ranks, "tied", tied),
    }
    sharing = ranks if ranks.size > 1 else None
    found: Found = {}
    for name, folder in folders.items():
        config = PretrainedModel(path=folder)
        loaded = load_model(folder, config, sharing=sharing)
        policy = passes(TokenLogprobs(loaded.model), ranks)
        assert gathered(policy, partial(unfit, loaded.model)) is None
        found |= read(name, loaded.model, ranks)
        critic = load_critic(folder, config, loaded.model, sharing=sharing)
        passes(TokenValues(critic), ranks)
        found |= read(f"{name} critic", critic, ranks)
    half = PretrainedModel(path=folders["tied"], dtype="bfloat16")
    frozen = load_model(folders["tied"], half, frozen=True, sharing=sharing)
    assert {weight.dtype for weight in frozen.model.parameters()} == {torch.bfloat16}
    add_adapters(frozen, LoRA(rank=2), 0)
    policy = TokenLogprobs(frozen.model, None if ranks.size > 1 else torch.bfloat16)
    adapter = PretrainedModel(path=saved_adapter(ranks, folders["tied"]))
    merged = load_model(adapter.path, adapter, sharing=sharing)
    found |= read("merged", passes(TokenLogprobs(merged.model), ranks).model, ranks)
    return found | read("base", passes(policy, ranks, torch.bfloat16).model, ranks)


def read(name: str, model: PreTrainedModel, ranks: Ranks) -> Found:
    """The weights of `model`, of which this rank has only its rows."""
    for key, weight in model.named_parameters():
        rows = -(-weight.shape[0] // ranks.size)
        assert local(weight).shape[0] <= rows
        held = local(weight).untyped_storage().nbytes() // weight.itemsize
        assert held <= rows * weight.shape[1:].numel(), (key, held, weight.shape)
    return {f"{name} {key}": whole(weight) for key, weight in weight_tensors(model).items()}


def saved(ranks: Ranks, name: str, loaded: LoadedModel) -> str:
    """Write a folder of `loaded` on rank 0."""
    folder = Path(sys.argv[1]).with_name(f"{name}-{ranks.size}")

    def write() -> bytes:
        save_description(loaded, folder)
        weights = as_in_a_folder(loaded.model, on_host(weight_tensors(loaded.model)))
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        return b""

    ranks.from_first(write)
    return str(folder)


def saved_adapter(ranks: Ranks, base: str) -> str:
    """Write a folder of adapters with an effect on the model in `base`, on rank 0."""
    folder = Path(sys.argv[1]).with_name(f"adapter-{ranks.size}")

    def write() -> bytes:
        loaded = load_model(base, PretrainedModel(path=base))
        add_adapters(loaded, LoRA(rank=2), 0)
        tensors = {name: tensor + 0.1 for name, tensor in adapter_tensors(loaded.model).items()}
        loaded.tokenizer.save_pretrained(folder)
        save_adapter_config(loaded, folder, base)
        save_file(tensors, folder / ADAPTER_WEIGHTS, {"format": "pt"})
        return b""

    ranks.from_first(write)
    return str(folder)


def main() -> None:
    ranks = start_ranks()
    everything: Found = {}
    output, *names = sys.argv[1:]
    for name in names:
        check, _, sharing = name.partition("/")
        found = globals()[check](ranks.sharing_rows(int(sharing or 1)))
        everything |= {f"{name} {n}": t.clone() for n, t in found.items()}
    if ranks.first:
        save_file(everything, Path(output))
    assert ranks.broadcast(b"the end" if ranks.first else None) == b"the end"
    stop_ranks(ranks)


if __name__ == "__main__":
    main()
