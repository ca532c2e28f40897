"""The runs of the recipes' benchmark, and the file of their outcomes.

A recipe is for a model of billions and answers of hundreds of tokens; the demo's model has a
million and answers in four. Objective, schedule, minibatches, epochs and staleness are the recipe's
own. Values whose unit depends on the model or the task (learning rates of Adam, lengths in tokens,
answers in a step) are scaled, the same way for all.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import xxhash

from recipes import find_recipe, list_recipes, merged

ANSWERS = 128
"""In a step, however they are divided into prompts."""
STEPS = 40
LR, CRITIC_LR = 1e-4, 5e-4
"""Of AdamW, of the policy and of a critic."""
RISE = 0.2
"""By so much the mean reward on held-out prompts must rise, of each seed."""
SEEDS = 3
ETA = 8
STALENESS: Mapping[str, Mapping[str, Any]] = {
    "plain": {"proximal": {"type": "sampler"}, "correction": {"type": "none"}},
    "decoupled": {
        "proximal": {"type": "recompute"},
        "correction": {"type": "mask", "low": 0.0, "high": 5.0},
    },
    "truncated": {
        "proximal": {"type": "recompute"},
        "correction": {"type": "truncate", "cap": 2.0},
    },
}
"""What is laid over `grpo`, in MINIBATCHES, to compare objectives on answers that are old."""
MINIBATCHES = 4
SYNCHRONOUS = "plain, η = 0"

Part = Literal["recipes", "staleness"]


@dataclass(frozen=True)
class Trial:
    """One run: an objective and a seed."""

    part: Part
    name: str
    seed: int
    config: dict[str, Any]
    """The run config, without the model's path."""

    @property
    def key(self) -> str:
        """Names what is run: with another config or seed it is another."""
        text = json.dumps([self.part, self.name, self.seed, self.config], sort_keys=True)
        return xxhash.xxh3_64_hexdigest(text.encode())


@dataclass(frozen=True)
class Outcome:
    """What is kept of a finished run."""

    part: Part
    name: str
    seed: int
    steps: int
    """Batches that it trained."""
    eta: int
    """Its bound on staleness."""
    key: str
    """Of its trial."""
    start: str
    """Checksum of the weights that it started from."""
    before: float
    """Mean reward on held-out prompts, at temperature 1."""
    after: float
    rewards: list[float]
    """Mean reward of each step's answers."""
    staleness: float
    """Versions, mean over groups and steps."""
    seconds: float
    commit: str | None


def recipe_trials(names: Iterable[str], seeds: int, steps: int) -> list[Trial]:
    """Each recipe with each seed; first all with the first seed."""
    chosen = list(names)
    return [
        Trial("recipes", name, seed, demo_config(find_recipe(name).config, seed, steps))
        for seed in range(seeds)
        for name in chosen
    ]


def staleness_trials(seeds: int, steps: int, eta: int) -> list[Trial]:
    """Each objective at `eta` with each seed, and the plain one that is synchronous."""
    trials = []
    for seed in range(seeds):
        for name, lag in [(SYNCHRONOUS, 0), *((name, eta) for name in STALENESS)]:
            changes = {
                "algorithm": {
                    "minibatches": MINIBATCHES,
                    **STALENESS.get(name, STALENESS["plain"]),
                },
                "rollout": {"max_staleness": lag},
            }
            recipe = merged(find_recipe("grpo").config, changes)
            trials.append(Trial("staleness", name, seed, demo_config(recipe, seed, steps)))
    return trials


def of_reinforcement_learning() -> list[str]:
    """The recipes that are compared: all that learn from rewards but those of the demo itself."""
    return [
        recipe.name
        for recipe in list_recipes()
        if recipe.config.get("rewards") and not recipe.config["data"].get("dataset")
    ]


def demo_config(recipe: Mapping[str, Any], seed: int, steps: int) -> dict[str, Any]:
    """The run config of `recipe` on the demo's task, model and verifier."""
    demo = deepcopy(find_recipe("demo_grpo").config)
    longest = demo["sampling"]["max_tokens"]
    return {
        **demo,
        "rollout": {
            **demo["rollout"],
            "max_staleness": recipe["rollout"]["max_staleness"],
        },
        "algorithm": scaled(recipe["algorithm"], longest / recipe["sampling"]["max_tokens"]),
        "optimizer": with_lr(recipe["optimizer"], LR),
        "schedule": dict(recipe["schedule"]),
        "training": {
            **demo["training"],
            "max_steps": steps,
            "checkpoint_every": steps,
            "seed": seed,
        },
        "evaluation": {"dataset": "demo-test", "samples": 4, "temperature": 1.0},
    }


def scaled(algorithm: Mapping[str, Any], shorter: float) -> dict[str, Any]:
    """`algorithm` with ANSWERS a step, of answers that are `shorter` times as long."""
    changed = deepcopy(dict(algorithm))
    changed["prompts_per_step"] = ANSWERS // changed["samples_per_prompt"]
    shaping = changed.get("shaping", {})
    for name in ("min_response_length", "overlong_buffer"):
        if name in shaping:
            shaping[name] = math.ceil(shaping[name] * shorter)
    critic = changed.get("critic")
    if critic:
        critic["optimizer"] = with_lr(critic["optimizer"], CRITIC_LR)
    return changed


def with_lr(optimizer: Mapping[str, Any], lr: float) -> dict[str, Any]:
    """AdamW at `lr`."""
    return {**optimizer, "lr": lr}


def read(file: Path) -> list[Outcome]:
    """What the file of results holds; nothing where there is none. A line that was half written
    when the benchmark was killed is skipped, and its run is made again."""
    if not file.exists():
        return []
    outcomes = []
    for line in file.read_text().splitlines():
        try:
            outcomes.append(Outcome(**json.loads(line)))
        except json.JSONDecodeError:
            continue
    return outcomes


def append(file: Path, outcome: Outcome) -> None:
    """Add one line."""
    file.parent.mkdir(parents=True, exist_ok=True)
    torn = file.exists() and not file.read_bytes().endswith(b"\n")
    with file.open("a") as lines:
        lines.write("\n" * torn + json.dumps(asdict(outcome), ensure_ascii=False) + "\n")


def left(trials: Sequence[Trial], outcomes: Iterable[Outcome], start: str) -> list[Trial]:
    """The trials that have no outcome yet from the weights `start`."""
    done = {outcome.key for outcome in outcomes if outcome.start == start}
    return [trial for trial in trials if trial.key not in done]
