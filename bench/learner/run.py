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

from bench.learner.sizes import MODELS
from bench.runner import BenchFailed, BenchPart, BenchResults, Figures

KNOWN = {name.lower(): config for name, config in MODELS.items()}
AGAINST = ("plain", "unshared")
NOTHING = "none"
WORKS = {"logprobs": "log-probabilities", "step": "full step"}
TOLERANCE = {"float32": 1e-3, "bfloat16": 3e-2}
"""The largest relative difference between the values that the sides compute."""


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


def parsed(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Read the command line. The default model has 30 M parameters: minutes on a CPU."""
    parser = argparse.ArgumentParser(prog="python -m bench.learner", description=__doc__)
    parser.add_argument("--architecture", default="llama", help="transformers' model_type")
    for name, default, about in (
        ("hidden", 384, "width of the model, which has random weights"),
        ("intermediate", 1024, "width of the feed-forward layers"),
        ("layers", 8, "blocks"),
        ("heads", 6, "attention heads"),
        ("head-dim", 0, "width of a head; 0: that of the model, divided by its heads"),
        ("kv-heads", 2, "key and value heads"),
        ("vocabulary", 49152, "tokens that the model knows"),
        ("sequences", 32, "answers"),
        ("answers", 1, "answers to each prompt"),
        ("prompt", 64, "tokens of each prompt, which do not train"),
        ("longest", 1024, "most tokens of an answer"),
        ("tokens", 4096, "most tokens in one pass; for plain transformers with padding"),
        ("repeats", 3, "times that are measured, after a first one"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{about} ({default})")
    parser.add_argument("--untied", action="store_true", help="an output head of its own")
    parser.add_argument("--lengths", choices=("mixed", "equal"), default="mixed", help="of answers")
    parser.add_argument("--dtype", choices=tuple(TOLERANCE), default="float32", help="forward pass")
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
    options = parsed()
    results = BenchResults("learner", options)
    with results.noting():
        for work in WORKS:
            results.measure(part(work, options))
    return results.report()
