"""Part `eta-N`: one run as users run it, at one bound on staleness.

Everything is read from what any run records: metrics.jsonl and the rollout worker's log.
"""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from bench.figures import steady, updates
from bench.installation import Installation
from bench.workload import BATCH, Scale, run_config


def measure(
    installation: Installation, model: str, eta: int, scale: Scale, say: Callable[[str], None]
) -> dict[str, Any]:
    """Train `scale.steps` steady steps with max_staleness `eta`. Raises BenchFailed."""
    warmup = scale.warmup(eta)
    say(f"training at η = {eta}: {warmup} warm-up steps, {scale.steps} measured")
    config = run_config(model, eta)
    with installation.running("demo_grpo", f"eta-{eta}", config) as run:
        installation.reach(run, warmup + scale.steps)
    figures = steady(installation.metrics(run), warmup, scale.steps, BATCH)
    # Version v is what step v made: the window's first one came from its first step.
    live = updates(installation.worker_records(), run, warmup + 1, warmup + scale.steps)
    say(f"  {figures.samples_per_second:.1f} samples/s, {figures.tokens_per_second:,.0f} tokens/s")
    return {"eta": eta, **asdict(figures), "updates": asdict(live) if live else None}
