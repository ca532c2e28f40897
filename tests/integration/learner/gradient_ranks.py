"""Started by torchrun: one batch's gradient, with its groups shared between the ranks.

`gradient_ranks.py OUTPUT BUDGET`: rank 0 writes the gradients to OUTPUT as safetensors.
"""

import sys
from pathlib import Path

from safetensors.torch import save_file
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from learner.distributed import start_ranks, stop_ranks
from learner.logprobs import TokenLogprobs
from learner.objective import Objective
from learner.packing import share
from learner.step import accumulate_gradients
from services.contracts.config.algorithm import Algorithm
from services.contracts.config.terms import ReferenceKL
from tests.unit.learner.policies import random_samples, tiny_model

GROUPS = 5


def main() -> None:
    output, budget = Path(sys.argv[1]), int(sys.argv[2])
    ranks = start_ranks()
    model = tiny_model().model
    samples = random_samples(groups=GROUPS, per_group=4)
    for sample in samples:
        sample.reference_logprobs = sample.sampler_logprobs - 0.1
    sizes = [sum(len(s.tokens) for s in samples if s.group == g) for g in range(GROUPS)]
    # Two ranks get unequal numbers of groups, hence of micro-batches: the smaller one pads.
    mine = share(sizes, ranks.size)[ranks.rank]
    policy: nn.Module = TokenLogprobs(model)
    if ranks.size > 1:
        policy = DistributedDataParallel(policy, forward_sync_buffers=False)
    objective = Objective(Algorithm(kl=ReferenceKL(type="k3", beta=0.1)), 0.8, 12)
    accumulate_gradients(policy, [s for s in samples if s.group in mine], objective, budget, ranks)
    if ranks.first:
        save_file({name: p.grad for name, p in model.named_parameters()}, output)
    assert ranks.broadcast(b"the end" if ranks.first else None) == b"the end"
    assert ranks.sum([1.0, float(ranks.rank)]) == [ranks.size, sum(range(ranks.size))]
    stop_ranks(ranks)


if __name__ == "__main__":
    main()
