"""A rank of a learner that computes one batch's gradients of policy, adapters, a mixture of experts
and critic, with its samples dealt to the ranks.

`gradient_ranks.py OUTPUT BUDGET SEED`: SEED decides which rank trains which sample. Rank 0 writes
the gradients to OUTPUT as safetensors.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel

from learner.distributed import Ranks, start_ranks, stop_ranks
from learner.model.loading.lora import BaseLogprobs, adapter_tensors, add_adapters
from learner.model.moe.routing import Routing
from learner.model.passes.logprobs import TokenLogprobs, packed_row
from learner.model.passes.microbatches import MicroBatches
from learner.model.placement.offload import Offload, present
from learner.model.value_model import TokenValues, TrainedCritic, accumulate_value_gradients
from learner.objective.compose import Objective
from learner.objective.value_loss import Moments
from learner.optim.optimizers import Optimizers
from learner.step import accumulate_gradients
from services.contracts.config.lora import LoRA
from services.contracts.config.objective.algorithm import Algorithm
from services.contracts.config.objective.critic import Critic as CriticConfig
from services.contracts.config.objective.terms import PromptMean, ReferenceKL
from services.contracts.config.optimizer import AdamW
from tests.unit.learner.experts import tiny_mixture
from tests.unit.learner.policies import random_samples, tiny_critic, tiny_model

GROUPS = 5


def shared(module: nn.Module, ranks: Ranks) -> nn.Module:
    """The same as in `train_rl`."""
    return DistributedDataParallel(module, forward_sync_buffers=False) if ranks.size > 1 else module


def adapted_model() -> PreTrainedModel:
    """The small model with adapters that have an effect: with B = 0, A has no gradient."""
    loaded = tiny_model()
    add_adapters(loaded, LoRA(rank=2), 0)
    generator = torch.Generator().manual_seed(1)
    for tensor in adapter_tensors(loaded.model).values():
        tensor.copy_(0.1 * torch.randn(tensor.shape, generator=generator))
    return loaded.model


def main() -> None:
    output, budget, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    ranks = start_ranks()
    model = tiny_model().model
    samples = random_samples(groups=GROUPS, per_group=4)
    for sample in samples:
        sample.reference_logprobs = sample.sampler_logprobs - 0.1
    # Ranks get unequal numbers of samples, and so of micro-batches: ranks with fewer micro-batches
    # pad.
    dealt = torch.randint(
        ranks.size, (len(samples),), generator=torch.Generator().manual_seed(seed)
    )
    mine = zip(samples, dealt.tolist(), strict=True)
    share_of_rank = [sample for sample, rank in mine if rank == ranks.rank]
    objective = Objective(
        Algorithm(kl=ReferenceKL(type="k3", beta=0.1), aggregation=PromptMean(type="prompt_mean")),
        0.8,
        12,
    )
    policy = shared(TokenLogprobs(model), ranks)
    accumulate_gradients(policy, share_of_rank, objective, MicroBatches(ranks, budget))
    thin = adapted_model()
    inner = TokenLogprobs(thin)
    policy = shared(inner, ranks)
    # Offloaded between two steps. Storage that ranks share must outlive it.
    BaseLogprobs(inner)(packed_row([samples[0].tokens], [samples[0].loss_mask]))
    accumulate_gradients(policy, share_of_rank, objective, MicroBatches(ranks, budget))
    mixture = tiny_mixture()
    routing = Routing(mixture, aux_weight=0.5, z_weight=0.05)
    routed = shared(TokenLogprobs(mixture, routing=routing), ranks)
    accumulate_gradients(routed, share_of_rank, objective, MicroBatches(ranks, budget))
    valued = tiny_critic()
    optimizers = Optimizers(valued, AdamW())
    # Its storage goes and comes under DDP, as if it were on the host between its passes.
    offloads = (Offload(valued.parameters),)
    with present(offloads, changed=False):
        values = shared(TokenValues(valued), ranks)
    critic = TrainedCritic(valued, values, optimizers, CriticConfig(), Moments(), offloads)
    for sample in share_of_rank:
        k = len(sample.sampler_logprobs)
        sample.values, sample.returns = torch.zeros(k + 1), torch.linspace(0, 1, k)
    algorithm = Algorithm.model_validate({"advantage": {"type": "gae"}, "critic": {}})
    with present(offloads, changed=True):
        accumulate_value_gradients(critic, share_of_rank, algorithm, MicroBatches(ranks, budget))
    if ranks.first:
        found = {name: p.grad for name, p in model.named_parameters()}
        found |= {f"thin {name}": p.grad for name, p in thin.named_parameters() if p.requires_grad}
        found |= {f"mixture {name}": p.grad for name, p in mixture.named_parameters()}
        found |= {f"critic {name}": p.grad for name, p in valued.named_parameters()}
        save_file(found, output)
    assert ranks.broadcast(b"the end" if ranks.first else None) == b"the end"
    assert ranks.sum([1.0, float(ranks.rank)]) == [ranks.size, sum(range(ranks.size))]
    stop_ranks(ranks)


if __name__ == "__main__":
    main()
