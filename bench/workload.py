"""What is measured: 32 prompts x 8 samples x 64 new tokens on the demo's model. Pure.

The model is the demo's Llama of about 1 M parameters with room for longer sequences; 64 tokens are
sampled whatever comes (`ignore_eos`), so every step has the same work. All runs share their vLLM
options, so that one server serves them all.

Answers are scored by the verifier `exact`, through the reward service. Behind the end of sequence
stands noise, and the math verifier takes 7 ms to make out that such a string is no expression:
on two cores that is as much time as training, and no run spends it on real answers.
"""

from dataclasses import dataclass
from typing import Any

PROMPTS = 32
SAMPLES = 8
NEW_TOKENS = 64
BATCH = PROMPTS * SAMPLES
CONTEXT = 128
SEQUENCES = 256
"""vLLM's max_num_seqs: a whole batch."""
ETAS = (0, 1, 4)
ENDLESS = 100_000
"""Steps, or prompts in a step, that no benchmark reaches: the run is cancelled before."""


@dataclass(frozen=True)
class Scale:
    """How long is measured."""

    steps: int
    """Steps measured of each training run."""
    rounds: int
    """Rounds of worker and offline generation, alternating."""
    waves: int
    """In each round, so many times the prompts of one step."""

    def warmup(self, eta: int) -> int:
        """Steps left out: until the queue is as full as η lets it get, and two more."""
        return eta + 2


FULL = Scale(steps=10, rounds=2, waves=4)
QUICK = Scale(steps=4, rounds=1, waves=2)


def model_config() -> dict[str, Any]:
    """Over the recipe demo_midtrain: a short run, since the benchmark needs a model that samples,
    not one that calculates."""
    return {
        "model": {"max_length": CONTEXT},
        "training": {"max_steps": 20, "rows_per_step": 32, "validate_every": 100},
    }


def run_config(model: str, eta: int) -> dict[str, Any]:
    """Over the recipe demo_grpo: the run that is measured, without an end and without evaluation.
    Checkpoints come as often as by default."""
    return {
        "model": {"path": model},
        "data": {"dataset": "demo-train"},
        "rewards": [{"verifier": "exact"}],
        "sampling": {"max_tokens": NEW_TOKENS, "ignore_eos": True},
        "rollout": {
            "max_staleness": eta,
            "vllm": {"max_model_len": CONTEXT, "max_num_seqs": SEQUENCES, "dtype": "float32"},
        },
        "algorithm": {"prompts_per_step": PROMPTS, "samples_per_prompt": SAMPLES},
        "training": {"max_steps": ENDLESS, "checkpoint_every": 10},
        "evaluation": None,
    }


def generation_config(model: str) -> dict[str, Any]:
    """The same for the worker alone: a first batch that never fills, so the learner stays idle."""
    config = run_config(model, eta=0)
    config["algorithm"]["prompts_per_step"] = ENDLESS
    config["training"]["max_steps"] = 1
    return config
