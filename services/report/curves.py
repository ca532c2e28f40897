"""The charts of a run's report. Pure."""

from collections.abc import Iterator

from headrace.metric_rows import in_short
from headrace.terminal import one_line
from services.report.charts import Curve
from services.report.facts import Facts
from services.report.parts import Chart, Charts, Part

PLOTS = (
    ("reward", "Reward", "reward", ("reward/mean",), ("reward/component/",)),
    ("dataset-reward", "Reward by dataset", "reward", (), ("dataset/reward/",)),
    ("dataset-pass-rate", "Correct answers by dataset", "share", (), ("dataset/pass_rate/",)),
    ("dataset-length", "Length of answers by dataset", "tokens", (), ("dataset/tokens/",)),
    ("dataset-share", "Share of each batch by dataset", "share", (), ("dataset/share/",)),
    ("dataset-filtered", "Filtered groups by dataset", "share", (), ("dataset/filtered/",)),
    ("pass-at-k", "Training prompts solved", "probability", (), ("reward/pass_at_",)),
    ("accuracy", "Held-out accuracy", "share", ("evaluation/accuracy",),
     ("evaluation/pass_at_", "evaluation/accuracy (")),
    ("held-out-reward", "Held-out reward", "reward", ("evaluation/reward",),
     ("evaluation/reward (",)),
    ("length", "Length of answers", "tokens", ("response/tokens_mean",), ()),
    ("turns", "Turns of a session", "turns", ("session/turns",), ()),
    ("forks", "Turns that began a branch", "share", ("session/fork_rate",), ()),
    ("tool-tokens", "Tokens of a session that were not sampled", "tokens",
     ("session/tool_tokens",), ()),
    ("truncated", "Truncated answers", "share", ("response/truncated",), ()),
    ("entropy", "Entropy", "nats per token", ("train/entropy",), ()),
    ("kl", "KL to the reference and to the sampler", "nats per token",
     ("train/kl", "mismatch/sampler_kl"), ()),
    ("staleness", "Staleness", "versions", ("staleness/mean", "staleness/max"), ()),
    ("loss", "Loss", "loss", ("train/loss", "validation/loss"), ()),
    ("dataset-loss", "Loss by dataset", "loss", (), ("train/loss/", "validation/loss/")),
    ("preferences", "Chosen answers preferred", "share",
     ("train/accuracy", "validation/accuracy"), ()),
    ("teacher", "KL to the teacher", "nats per token", ("train/teacher_kl",), ()),
    ("bits-per-byte", "Bits per byte", "bits", ("validation/bits_per_byte",), ()),
    ("gradient", "Norm of the gradient", "norm", ("train/grad_norm",), ()),
    ("throughput", "Throughput", "tokens per second", ("throughput/tokens_per_second",), ()),
)  # fmt: skip
"""Name, title, unit, names of metrics, and prefixes of names (docs/metrics.md)."""


def curves(facts: Facts, other: Facts | None) -> Iterator[Part]:
    """Yield the charts of a run, with the lines of the run `other` dashed."""
    if facts.record["max_steps"] == 0:
        # An evaluation has one point, and the tables have its figures.
        return
    charts = []
    runs = [(facts, "", False), *([(other, f", {other.title}", True)] if other else [])]
    for name, title, unit, metrics, beginnings in PLOTS:
        lines = [
            Curve(one_line(f"{metric}{suffix}"), *run.series(metric), dashed)
            for run, suffix, dashed in runs
            for metric in [
                *metrics,
                *in_short(n for n in run.names if n.startswith(beginnings or "\0")),
            ]
            if run.series(metric)[0]
        ]
        if lines:
            charts.append(Chart(name, title, unit, lines))
    if charts:
        yield Charts(charts)
