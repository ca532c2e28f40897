"""What a model does to its logits before their softmax: a factor, and a cap.

Cohere multiplies them, Granite divides them; Gemma and nanochat have c·tanh(logits / c). vLLM does
the same before it divides by the temperature.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedModel

from learner.errors import RunCannotGoOn

MULTIPLIERS = ("logit_scale", "lm_head_multiplier")
DIVISORS = ("logits_scaling",)
CAP = "final_logit_softcapping"
APART = 1e-3
"""Largest difference between the model's logits and ours, as a share of the largest: more than
rounding, less than another factor or cap makes."""
APART_BFLOAT16 = 0.05
"""The same where rounding makes a hundredth or two."""


class UnusableHead(RunCannotGoOn):
    """The learner cannot train this model's output head; the message says why."""


@dataclass(frozen=True)
class LogitScale:
    """cap · tanh(multiplier · z / cap) of the head's output z; without a cap multiplier · z."""

    multiplier: float = 1.0
    cap: float | None = None

    def at(self, temperature: float) -> "LogitScale":
        """Also divided by `temperature`."""
        cap = None if self.cap is None else self.cap / temperature
        return LogitScale(self.multiplier / temperature, cap)

    def apply_(self, z: torch.Tensor) -> torch.Tensor:
        """The logits, in place."""
        if self.multiplier != 1.0:
            z.mul_(self.multiplier)
        return z if self.cap is None else z.div_(self.cap).tanh_().mul_(self.cap)

    def bend(self, logits: torch.Tensor) -> torch.Tensor | None:
        """What the cap alone does to a gradient of the `logits` that it made; None without one."""
        return None if self.cap is None else 1 - (logits / self.cap).square()


PLAIN = LogitScale()


def logit_scale(model: PreTrainedModel) -> LogitScale:
    """Of `model`, by its config."""
    config = model.config.get_text_config()

    def named(name: str) -> float:
        value = getattr(config, name, None)
        return 1.0 if value is None else float(value)

    scale = LogitScale(cap=getattr(config, CAP, None))
    for name in MULTIPLIERS:
        scale = replace(scale, multiplier=scale.multiplier * named(name))
    for name in DIVISORS:
        scale = replace(scale, multiplier=scale.multiplier / named(name))
    return scale


@torch.no_grad()
def other_logits(model: PreTrainedModel) -> str | None:
    """Why `model` cannot be trained through its head: its own logits are others than `logit_scale`
    makes of the head's output. None where they are the same."""
    words = model.get_input_embeddings().num_embeddings
    tokens = ((torch.arange(8) * 7 + 3) % words).to(model.device)[None]
    own: Any = model(input_ids=tokens, use_cache=False)
    found = model.get_output_embeddings()(
        model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
    )
    scaled = logit_scale(model).apply_(found)
    # Differences between logits: a constant changes no probability.
    ours, theirs = (x - x.mean(-1, keepdim=True) for x in (scaled, own.logits))
    apart = APART_BFLOAT16 if found.dtype == torch.bfloat16 else APART
    if not (ours - theirs).abs().max() > apart * theirs.abs().max():
        return None
    return (
        f"{type(model).__name__} makes other logits of its output head than the learner can: "
        "train another architecture"
    )
