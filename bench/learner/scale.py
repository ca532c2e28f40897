"""`python -m bench.learner.scale`: what fits where, by the arithmetic of `services.estimate`, as
a table.

With `--check` the arithmetic is compared with torch's tracker of memory: a step of a model is
traced on tensors without data, sharded over ranks that do not exist, through the learner's own
passes. That needs neither a GPU nor weights, and a minute for a large model.
"""

import argparse
import sys
from dataclasses import replace

from bench.learner.sizes import MODELS
from services.contracts.config.optimizer import AdamW
from services.estimate.shape import ModelShape, shape_of
from services.estimate.training import (
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
"""Of a GPU: what fits with a fifth to spare."""
GPUS = (("24 GB", 24 * GB), ("48 GB", 48 * GB), ("80 GB", 80 * GB), ("141 GB", 141 * GB))
COUNTS = (1, 2, 4, 8, 16)


def shape(name: str) -> ModelShape:
    """Of a model by its name in MODELS."""
    found = shape_of(MODELS[name])
    assert found is not None
    return found


def of_a_rank(model: ModelShape, how: Pass) -> Memory:
    """The peak of a rank that trains all weights of `model` with AdamW, `how.parallel` as given."""
    held = resident(model, AdamW(), model.parameters, how)
    return replace(added(held, in_a_pass(model, model.parameters, how)), runtime=RUNTIME)


def least_ranks(model: ModelShape, memory: int, checkpointing: bool) -> tuple[int, Memory] | None:
    """The fewest GPUs of so much `memory` that hold the training with a fifth to spare, as the
    learner would divide it by itself, and what each then has; None: more than COUNTS."""
    # Weights, gradients, DDP's buckets, and two moments.
    needed = 5 * FLOAT32 * model.parameters
    for ranks in COUNTS:
        parallel = parallel_on("auto", needed, memory, ranks)
        found = of_a_rank(model, Pass(ranks, parallel, True, TOKENS, checkpointing))
        if found.total <= SPARE * memory:
            return ranks, found
    return None


def markdown() -> str:
    """The table of docs/scale.md."""
    head = ["| Model | Activations | " + " | ".join(name for name, _ in GPUS) + " |"]
    head.append("|" + " --- |" * (len(GPUS) + 2))
    for name in MODELS:
        for checkpointing in (False, True):
            cells = []
            for _, memory in GPUS:
                found = least_ranks(shape(name), memory, checkpointing)
                cells.append(
                    "—" if found is None else f"{found[0]} × ({found[1].total / GB:.0f} GB)"
                )
            kept = "computed again" if checkpointing else "kept"
            head.append(f"| {name} | {kept} | {' | '.join(cells)} |")
    return "\n".join(head)


def compared(name: str, ranks: int, tokens: int) -> str:
    """A line with estimate and tracked peak, without what CUDA itself takes."""
    from bench.learner.tracked import tracked_peak

    how = Pass(ranks, "fsdp", half=True, tokens=tokens, checkpointing=True)
    estimate = of_a_rank(shape(name), how).total - RUNTIME
    peak = tracked_peak(MODELS[name], ranks, tokens)
    return (
        f"| {name} | {ranks} | {estimate / GB:.1f} | {peak / GB:.1f} | {estimate / peak - 1:+.0%} |"
    )


def main() -> int:
    """Print the table, or the comparison. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.learner.scale", description=__doc__)
    parser.add_argument("--check", nargs="*", metavar="MODEL", help="compare with the tracker")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    options = parser.parse_args()
    if options.check is None:
        print(markdown())
        return 0
    if unknown := set(options.check) - set(MODELS):
        sys.stderr.write(f"error: there are {', '.join(MODELS)}; not {', '.join(unknown)}\n")
        return 2
    print("| Model | Ranks | Estimate, GB | Tracked, GB | Apart |\n| --- | --- | --- | --- | --- |")
    for name in options.check or MODELS:
        print(compared(name, options.ranks, options.tokens), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
