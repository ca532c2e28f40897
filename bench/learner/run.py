"""`python -m bench.learner`: the learner's speed and memory against plain transformers, or against
itself without shared prompts.

Each side takes the log-probabilities of one batch, forward only, and then trains a full step on it.
Each measurement has a process of its own (`one_pass`). Needs torch and transformers alone, so that
it runs on a GPU host without the rest of Headrace.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.learner.sizes import MODELS
from bench.runner import BenchFailed, BenchPart, BenchResults, Figures

KNOWN = {name.lower(): config for name, config in MODELS.items()}
AGAINST = ("plain", "unshared")
NOTHING = "none"
WORKS = {"logprobs": "log-probabilities", "step": "full step"}
TOLERANCE = {"float32": 1e-3, "bfloat16": 3e-2}
"""The largest relative difference between the values that the sides compute."""
CPU_SIZE: dict[str, Any] = {
    "architecture": "llama",
    "hidden": 384,
    "intermediate": 1024,
    "layers": 8,
    "heads": 6,
    "head_dim": 0,
    "kv_heads": 2,
    "vocabulary": 49152,
    "sequences": 32,
    "answers": 1,
    "prompt": 64,
    "longest": 1024,
    "tokens": 4096,
    "repeats": 3,
    "dtype": "float32",
}
GPU_SIZE: dict[str, Any] = {"sequences": 64, "answers": 8, "prompt": 256, "dtype": "bfloat16"}
SPARE = 0.8
PASSES = (1024, 2048, 4096, 8192)
"""Tokens of a pass on a GPU, of which the most are taken that fit into SPARE of its memory."""
STATE_BYTES = 16 * 596_049_920
"""Weights, gradients and two moments of Qwen3-0.6B."""
TOKEN_BYTES = 22 * 151_936 + 28 * 76 * 1024
"""What plain transformers take for a token of a pass of Qwen3-0.6B: logits in bfloat16 and float32,
their softmax and gradients, and 76 KiB of activations in each block."""


def one_side(side: str, work: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Measure in a process of its own. Raise BenchFailed if it fails; its stderr is shown."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.learner.one_pass"],
        input=json.dumps({"side": side, "work": work, "options": options}),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    if done.returncode:
        raise BenchFailed(f"the process ended with exit code {done.returncode}; its error is above")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if "failed" in result:
        raise BenchFailed(result["failed"])
    return result


def figures(result: Mapping[str, Any]) -> Figures:
    """Name the figures of one side, with units."""
    return {
        "tokens/s": [result["tokens"] / seconds for seconds in result["seconds"]],
        "MFU": result["mfu"],
        "peak memory, MB": result["peak_bytes"] / 1e6,
        "CPU seconds, median": result["median_cpu_seconds"],
        "passes": result["passes"],
        "tokens computed": result["computed_tokens"],
        "mean log-probability": result["logprob_mean"],
        "gradient's norm": result.get("grad_norm"),
    }


def part(work: str, options: Mapping[str, Any]) -> BenchPart:
    """One work on all sides."""
    names = ("headrace",) if options["against"] == NOTHING else ("headrace", options["against"])
    tolerance = TOLERANCE[options["dtype"]]
    return BenchPart(
        WORKS[work],
        {name: partial(measured, name, work, options) for name in names},
        ratio=(names[0], names[1]) if len(names) == 2 else None,
        agree={"mean log-probability": tolerance, "gradient's norm": tolerance},
    )


def measured(side: str, work: str, options: Mapping[str, Any]) -> Figures:
    return figures(one_side(side, work, options))


def usual(memory: int | None) -> dict[str, Any]:
    """Return the default size. On a GPU with `memory` bytes it is what its user trains: Qwen3-0.6B
    in bfloat16, with passes that plain transformers have memory for. On a CPU the model has 30 M
    parameters, which take minutes."""
    if memory is None:
        return CPU_SIZE
    free = SPARE * memory - STATE_BYTES
    tokens = max(count for count in PASSES if count * TOKEN_BYTES <= free or count == PASSES[0])
    longest = min(2048, tokens - GPU_SIZE["prompt"])
    return (
        CPU_SIZE | sizes(MODELS["Qwen3-0.6B"]) | GPU_SIZE | {"tokens": tokens, "longest": longest}
    )


def gpu_memory() -> int | None:
    """Return the bytes of the GPU that the sides compute on, or None if they compute on a CPU."""
    if not torch.cuda.is_available():
        return None
    return int(torch.cuda.get_device_properties(0).total_memory)


def parsed(arguments: Sequence[str] | None = None, memory: int | None = None) -> dict[str, Any]:
    """Read the command line. `memory`: see `usual`."""
    default = usual(memory)
    parser = argparse.ArgumentParser(prog="python -m bench.learner", description=__doc__)
    parser.add_argument(
        "--architecture", default=default["architecture"], help="transformers' model_type"
    )
    for name, about in (
        ("hidden", "width of the model, which has random weights"),
        ("intermediate", "width of the feed-forward layers"),
        ("layers", "blocks"),
        ("heads", "attention heads"),
        ("head-dim", "width of a head; 0: that of the model, divided by its heads"),
        ("kv-heads", "key and value heads"),
        ("vocabulary", "tokens that the model knows"),
        ("sequences", "answers"),
        ("answers", "answers to each prompt"),
        ("prompt", "tokens of each prompt, which do not train"),
        ("longest", "most tokens of an answer"),
        ("tokens", "most tokens in one pass; for plain transformers with padding"),
        ("repeats", "times that are measured, after a first one"),
    ):
        value = default[name.replace("-", "_")]
        parser.add_argument(f"--{name}", type=int, default=value, help=f"{about} ({value})")
    parser.add_argument("--untied", action="store_true", help="an output head of its own")
    parser.add_argument("--lengths", choices=("mixed", "equal"), default="mixed", help="of answers")
    parser.add_argument(
        "--dtype", choices=tuple(TOLERANCE), default=default["dtype"], help="forward pass"
    )
    parser.add_argument(
        "--against",
        choices=(*AGAINST, NOTHING),
        default="plain",
        help="the other side (plain); none: measure the learner alone and compare nothing",
    )
    parser.add_argument("--checkpointing", action="store_true", help="recompute activations")
    parser.add_argument(
        "--compile", choices=("auto", "on", "off"), default="auto", help="as training.compile"
    )
    parser.add_argument(
        "--model", choices=tuple(KNOWN), help="a known size, instead of the numbers"
    )
    options = vars(parser.parse_args(arguments))
    model = options.pop("model")
    return options | (sizes(KNOWN[model]) if model else {})


def sizes(config: Mapping[str, Any]) -> dict[str, Any]:
    """A model's config as options."""
    names = {
        "architecture": "model_type",
        "hidden": "hidden_size",
        "intermediate": "intermediate_size",
        "layers": "num_hidden_layers",
        "heads": "num_attention_heads",
        "kv_heads": "num_key_value_heads",
        "head_dim": "head_dim",
        "vocabulary": "vocab_size",
    }
    sizes = {option: config[name] for option, name in names.items()}
    return sizes | {"untied": not config["tie_word_embeddings"]}


def main() -> int:
    options = parsed(memory=gpu_memory())
    results = BenchResults("learner", options)
    with results.noting():
        for work in WORKS:
            results.measure(part(work, options))
    return results.report()
