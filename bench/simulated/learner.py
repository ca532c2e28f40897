"""`python -m bench.simulated.learner`: a learner of one rank (`python -m learner.rank`), which
sleeps as long as a GPU would take where it would train a batch. Nothing else of it is changed."""

import sys
import time

from bench.simulated.gpus import training_seconds
from learner import rank, rl
from learner.distributed import Ranks
from learner.state import TrainingState
from services.contracts.config import RLConfig


def sleep(
    state: TrainingState, batch: rl.Batch, config: RLConfig, ranks: Ranks, max_steps: int
) -> dict[str, float]:
    """In place of `learner.rl.train`: one update a batch, and nothing measured of it."""
    tokens = sum(len(sample.sampler_logprobs) for part in batch.minibatches for sample in part)
    time.sleep(training_seconds(tokens))
    metrics = {"train/updates": 1.0}
    state.progress = rl.advanced(state.progress, config, metrics)
    return metrics


if __name__ == "__main__":
    rl.train = sleep
    sys.exit(rank.main())
