"""A model's scaling of its logits before the softmax: a factor, and a cap.

Cohere multiplies the logits, Granite divides them; Gemma and nanochat compute c·tanh(logits / c).
vLLM does the same before it divides by the temperature.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedModel

from learner.errors import RunCannotGoOn

MULTIPLIERS = ("logit_scale", "lm_head_multiplier")
DIVISORS = ("logits_scaling",)
CAP = "final_logit_softcapping"
TOLERANCE = 1e-3
"""Largest difference between the model's logits and ours, relative to the largest logit. Rounding
stays below it; another factor or cap exceeds it."""
TOLERANCE_BFLOAT16 = 0.05
"""The same tolerance for bfloat16, whose rounding alone gives 0.01 to 0.02."""


class UnusableHead(RunCannotGoOn):
    """The learner cannot train this model's output head. The message says why."""


@dataclass(frozen=True)
class LogitScale:
    """cap · tanh(multiplier · z / cap) of the head's output z. Without a cap: multiplier · z."""

    multiplier: float = 1.0
    cap: float | None = None

    def at(self, temperature: float) -> "LogitScale":
        """Return this scale divided by `temperature`."""
        cap = None if self.cap is None else self.cap / temperature
        return LogitScale(self.multiplier / temperature, cap)

    def apply_(self, z: torch.Tensor) -> torch.Tensor:
        if self.multiplier != 1.0:
            z.mul_(self.multiplier)
        return z if self.cap is None else z.div_(self.cap).tanh_().mul_(self.cap)

    def bend(self, logits: torch.Tensor) -> torch.Tensor | None:
        """Return the factor by which the cap scales a gradient of the `logits`, or None without a
        cap."""
        return None if self.cap is None else 1 - (logits / self.cap).square()


PLAIN = LogitScale()


def logit_scale(model: PreTrainedModel) -> LogitScale:
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
    """Return why `model` cannot be trained through its head: its own logits differ from
    `logit_scale` of the head's output. Return None if they agree."""
    words = model.get_input_embeddings().num_embeddings
    tokens = ((torch.arange(8) * 7 + 3) % words).to(model.device)[None]
    output: Any = model(input_ids=tokens, use_cache=False)
    logits = model.get_output_embeddings()(
        model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
    )
    scaled = logit_scale(model).apply_(logits)
    # Compared up to a constant, which does not change probabilities.
    ours, theirs = (x - x.mean(-1, keepdim=True) for x in (scaled, output.logits))
    tolerance = TOLERANCE_BFLOAT16 if logits.dtype == torch.bfloat16 else TOLERANCE
    if not (ours - theirs).abs().max() > tolerance * theirs.abs().max():
        return None
    return (
        f"{type(model).__name__} makes other logits of its output head than the learner can: "
        "train another architecture"
    )
