"""The whole loop on one GPU: Redis, gateway, rewards, learner, and a real vLLM.

The model has Qwen3-0.6B's size and random weights. Without a GPU it is tiny, to try the benchmark.
"""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from bench.gpu.model import is_tiny, write_model
from bench.installation import Installation, failures, records, work_folder
from bench.runner import BenchPart, Figures
from bench.training import updates

SHOWN = {
    "time/step": "step, s",
    "time/waiting_for_groups": "of which waiting for groups, s",
    "time/training": "of which training, s",
    "time/publishing": "of which publishing, s",
    "throughput/tokens_per_second": "tokens/s",
    "throughput/learner_tokens_per_second": "tokens/s of the learner alone",
    "train/mfu": "MFU",
    "memory/peak_bytes": "learner's peak, bytes",
    "memory/reserved_peak": "learner's reserved peak, bytes",
    "push/bytes": "pushed, bytes",
    "mismatch/canary": "canary, nats",
    "mismatch/kl": "mismatch, KL in nats",
    "staleness/mean": "staleness, versions",
    "compile/failed": "pieces not compiled",
}
FACTS = re.compile(
    r"Model Runner|attention backend|(?i:asynchronous scheduling)|KV cache (?:size|layout)"
)
MODES: dict[str, dict[str, Any]] = {
    "side by side": {},
    "in turns": {"sleeps": True, "gpu_memory_utilization": 0.8},
}
"""How learner and vLLM share the GPU."""


def parts(data: Path | None, steps: int) -> list[BenchPart]:
    modes = list(MODES) if torch.cuda.is_available() else ["side by side"]
    sides = {mode: partial(measured, mode, data, steps) for mode in modes}
    ratio = ("side by side", "in turns") if len(sides) == 2 else None
    return [BenchPart("the whole loop", sides, ratio=ratio)]


def measured(mode: str, data: Path | None, steps: int) -> Figures:
    """Train `steps` steps. Return the medians after the first step, which compiles and waits for
    vLLM. Prints what vLLM's log says of its engine. Raises BenchFailed."""
    at = None if data is None else data / mode.replace(" ", "-")
    with work_folder(at) as folder, failures(), Installation(folder / "data") as up:
        model = write_model(folder / "model")
        run = up.submit("grpo", mode.replace(" ", "-"), config(model, steps, MODES[mode]))
        up.finish(run)
        rows = up.metrics(run)[1:]
        logs = [line for log in up.data.glob("logs/rollout*.log") for line in records(log)]
        facts = engine_facts([*up.data.glob("logs/vllm*.log")])
        print(*facts, sep="\n", flush=True)
        differences = differences_of(up.api, run, steps)
    figures: dict[str, float | Sequence[float] | None] = {
        words: [float(row[name]) for row in rows if row.get(name) is not None] or None
        for name, words in SHOWN.items()
    }
    return figures | updates(logs, run, 1, steps) | by_position(differences)


def config(model: Path, steps: int, vllm: dict[str, Any]) -> dict[str, Any]:
    """A run whose rewards are 0 or 1 at random, as likely as each other: by the text's length."""
    return {
        "model": {"path": str(model)},
        "data": {"dataset": "demo-train", "template": "{prompt}", "chat_template": "none"},
        "rewards": [
            {
                "verifier": "length",
                "params": {"minimum": 0, "maximum": 9 * answer(), "within": 1.0, "outside": 0.0},
            }
        ],
        "sampling": {"max_tokens": answer()},
        "training": {"max_steps": steps},
        "optimizer": {"lr": 1e-6},
        "rollout": {"keep_share": 1.0, "vllm": vllm},
    }


def answer() -> int:
    """Most tokens of an answer."""
    return 16 if is_tiny() else 512


def engine_facts(logs: Sequence[Path]) -> list[str]:
    """Return the lines of vLLM's logs that say which engine ran, each once."""
    lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()]
    facts = [line.partition("] ")[2] or line for line in lines if FACTS.search(line)]
    return list(dict.fromkeys(line[:240] for line in facts))


def differences_of(api: Any, run: str, step: int) -> list[list[float]]:
    """Return, for each answer of one group of `step`, how far apart the log-probabilities of
    sampler and learner are, token by token."""
    listed = api.get(f"/v1/runs/{run}/rollouts", step=step, limit=1)["rollouts"]
    if not listed:
        return []
    group = api.get(f"/v1/runs/{run}/rollouts/{step}/{listed[0]['group']}")
    return [
        [
            abs(sampled - learned)
            for sampled, learned in zip(
                sample["sampler_logprobs"], sample["learner_logprobs"] or [], strict=False
            )
            if sampled is not None and learned is not None
        ]
        for sample in group["samples"]
    ]


def by_position(answers: Sequence[Sequence[float]]) -> dict[str, float]:
    """Return mean and maximum of the differences, and their means in each quarter of an answer."""
    every = [difference for answer in answers for difference in answer]
    if not every:
        return {}
    figures = {"sampler − learner, mean nats": fmean(every), "sampler − learner, most": max(every)}
    for quarter in range(4):
        inside = [
            difference
            for answer in answers
            for place, difference in enumerate(answer)
            if 4 * place // len(answer) == quarter
        ]
        if inside:
            figures[f"sampler − learner, mean of quarter {quarter + 1}"] = fmean(inside)
    return figures
