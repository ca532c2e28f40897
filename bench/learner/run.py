"""`python -m bench.learner`: the learner's speed and memory against plain transformers, or against
itself without shared prompts.

Both sides take log-probabilities of one batch, forward only, and train a full step on it, each in
a process of its own (`one_pass`), one after the other. Needs torch and transformers alone, so
that it runs on a GPU host without the rest of Headrace.
"""

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.learner.sizes import MODELS
from bench.results import begun, keep, table

KNOWN = {name.lower(): config for name, config in MODELS.items()}
AGAINST = {"plain": "plain transformers", "unshared": "each answer with its own prompt"}
NOTHING = "none"
WORKS = {"logprobs": "log-probabilities", "step": "full step"}
APART = {"float32": 1e-3, "bfloat16": 3e-2}
"""Largest relative difference between the values that the sides compute."""


class SidesDiffer(RuntimeError):
    """The two sides did not compute the same; the message has both values."""


def one_side(side: str, work: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Measure in a process of its own. Raises CalledProcessError; its stderr has been shown."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.learner.one_pass"],
        input=json.dumps({"side": side, "work": work, "options": options}),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run(options: Mapping[str, Any], say: Callable[[str], None]) -> dict[str, Any]:
    """Every work on both sides. Raises SidesDiffer, CalledProcessError."""
    results = begun("learner") | {"options": dict(options)}
    for work in WORKS:
        results[work] = {}
        for side in sides(options):
            say(f"{WORKS[work]}: {side}")
            results[work][side] = one_side(side, work, options)
        must_agree(work, results[work], APART[options["dtype"]])
    return results


def sides(options: Mapping[str, Any]) -> tuple[str, ...]:
    """What is measured, and what against, if anything."""
    return ("headrace",) if options["against"] == NOTHING else ("headrace", options["against"])


def must_agree(work: str, found: Mapping[str, dict[str, Any]], apart: float) -> None:
    """Raise SidesDiffer if log-probabilities or gradients are further apart than `apart`."""
    if len(found) == 1:
        return
    (_, one), (against, other) = found.items()
    for name in ("logprob_mean", "grad_norm"):
        ours, theirs = one.get(name), other.get(name)
        if None not in (ours, theirs) and not math.isclose(ours, theirs, rel_tol=apart):  # type: ignore[arg-type]
            raise SidesDiffer(f"{work}: {name} is {ours} here and {theirs} with {AGAINST[against]}")


def text(results: Mapping[str, Any]) -> str:
    """The figures, and their ratios, as a table."""
    named = list(results[next(iter(WORKS))])
    columns = named if len(named) == 1 else [*named, "ratio"]
    rows = [["", *(f"{work} {side}" for work in WORKS for side in columns)]]
    for label, name, form in (
        ("tokens/s", "tokens_per_second", "{:,.0f}"),
        ("MFU", "mfu", "{:.1%}"),
        ("peak memory, bytes", "peak_bytes", "{:,.0f}"),
        ("median seconds", "median_seconds", "{:.3f}"),
        ("median CPU seconds", "median_cpu_seconds", "{:.3f}"),
        ("passes", "passes", "{:.0f}"),
        ("tokens computed", "computed_tokens", "{:,.0f}"),
    ):
        cells = []
        for work in WORKS:
            found = [results[work][side][name] for side in named]
            cells += ["-" if one is None else form.format(one) for one in found]
            if len(found) == 2:
                cells.append(f"{found[0] / found[1]:.2f}" if all(found) else "-")
        rows.append([label, *cells])
    return table(rows)


def parsed(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """The command line. The default, of 30 M parameters, is for a CPU and a few minutes."""
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
        ("tokens", 4096, "most tokens in one pass; plain transformers': with padding"),
        ("repeats", 3, "times that are measured, after a first one"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{about} ({default})")
    parser.add_argument("--untied", action="store_true", help="an output head of its own")
    parser.add_argument("--lengths", choices=("mixed", "equal"), default="mixed", help="of answers")
    parser.add_argument("--dtype", choices=tuple(APART), default="float32", help="forward pass")
    parser.add_argument(
        "--against",
        choices=(*AGAINST, NOTHING),
        default="plain",
        help="what (plain); none: the learner alone, whose results nothing is compared with",
    )
    parser.add_argument("--checkpointing", action="store_true", help="recompute activations")
    parser.add_argument(
        "--compile", choices=("auto", "on", "off"), default="auto", help="as training.compile"
    )
    parser.add_argument("--model", choices=tuple(KNOWN), help="of this size, whatever else is said")
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
    found = {option: config[name] for option, name in names.items()}
    return found | {"untied": not config["tie_word_embeddings"]}


def main() -> int:
    """Measure, print, keep."""
    results = run(parsed(), lambda line: print(line, file=sys.stderr, flush=True))
    print(f"{text(results)}\nall figures: {keep(results)}")
    return 0
