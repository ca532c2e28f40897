"""The workload of `headrace bench`: 32 prompts x 8 samples x 64 new tokens on the demo's model.

Each answer has 64 tokens (`ignore_eos`), so every step has the same work. All runs have the same
vLLM options, so that one server serves them all. The verifier is `exact`: an answer has noise after
its end, and the math verifier takes 7 ms to find no expression in it.
"""

from typing import Any

PROMPTS, SAMPLES, NEW_TOKENS = 32, 8, 64
BATCH = PROMPTS * SAMPLES
CONTEXT = 128
SEQUENCES = 256
"""vLLM's max_num_seqs: a whole batch."""
ENDLESS = 100_000
"""Steps, or prompts in a step. No run reaches this number: it is cancelled before."""


def model_config() -> dict[str, Any]:
    """Changes to the recipe demo_sft: a short run. The model must sample, not calculate."""
    return {
        "model": {"max_length": CONTEXT},
        "training": {"max_steps": 20, "rows_per_step": 32},
    }


def run_config(model: str, eta: int) -> dict[str, Any]:
    """Changes to the recipe demo_grpo: the measured run, without an end or an evaluation."""
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
    """The run of the worker alone. Its first batch never fills, so the learner stays idle."""
    config = run_config(model, eta=0)
    config["algorithm"]["prompts_per_step"] = ENDLESS
    config["training"]["max_steps"] = 1
    return config
