"""`python -m bench.learner.scale`: the table of docs/scale.md, by the arithmetic of
`services.estimate`.
"""

from dataclasses import replace

from bench.learner.sizes import MODELS
from services.contracts.config.optimizer import AdamW
from services.estimate.model_shape import ModelShape, shape_of
from services.estimate.rank_bytes import (
    FLOAT32,
    RUNTIME,
    Memory,
    Pass,
    added,
    in_a_pass,
    parallel_on,
    resident,
)

TOKENS = 16_384
GB = 10**9
SPARE = 0.8
"""The share of a GPU that may be used."""
GPUS = (("24 GB", 24 * GB), ("48 GB", 48 * GB), ("80 GB", 80 * GB), ("141 GB", 141 * GB))
COUNTS = (1, 2, 4, 8, 16)


def shape(name: str) -> ModelShape:
    """The shape of a model, by its name in MODELS."""
    widths = shape_of(MODELS[name])
    assert widths is not None
    return widths


def of_a_rank(model: ModelShape, how: Pass) -> Memory:
    """The peak of a rank that trains all weights of `model` with AdamW."""
    held = resident(model, AdamW(), model.parameters, how)
    return replace(added(held, in_a_pass(model, model.parameters, how)), runtime=RUNTIME)


def least_ranks(model: ModelShape, memory: int, checkpointing: bool) -> tuple[int, Memory] | None:
    """The fewest GPUs of `memory` bytes that hold the training with a fifth to spare, and the peak
    of each. The learner chooses how to divide. None if it takes more GPUs than COUNTS has."""
    # Weights, gradients, DDP's buckets, and two moments.
    needed = 5 * FLOAT32 * model.parameters
    for ranks in COUNTS:
        parallel = parallel_on("auto", needed, memory, ranks)
        memory_of_rank = of_a_rank(model, Pass(ranks, parallel, True, TOKENS, checkpointing))
        if memory_of_rank.total <= SPARE * memory:
            return ranks, memory_of_rank
    return None


def markdown() -> str:
    head = ["| Model | Activations | " + " | ".join(name for name, _ in GPUS) + " |"]
    head.append("|" + " --- |" * (len(GPUS) + 2))
    for name in MODELS:
        for checkpointing in (False, True):
            cells = []
            for _, memory in GPUS:
                least = least_ranks(shape(name), memory, checkpointing)
                cells.append(
                    "—" if least is None else f"{least[0]} × ({least[1].total / GB:.0f} GB)"
                )
            kept = "computed again" if checkpointing else "kept"
            head.append(f"| {name} | {kept} | {' | '.join(cells)} |")
    return "\n".join(head)


if __name__ == "__main__":
    print(markdown())
