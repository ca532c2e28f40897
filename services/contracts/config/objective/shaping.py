"""Changes of a reward before advantages."""

from typing import Self

from pydantic import Field, model_validator

from services.contracts.config.base import Section, refuse_if


class Shaping(Section):
    """Changes a sample's reward r before advantages, in the order of the keys below."""

    bias: float = 0.0
    """Subtracted from r."""
    scale: float = 1.0
    """Multiplies r − bias."""
    max_reward_clip: float | None = Field(None, gt=0)
    """(r − bias) · scale is clipped to ± this."""
    penalise_no_eos: bool = False
    """Replace the reward of completions without end of sequence by `reward_penalty`."""
    min_response_length: int = Field(0, ge=0)
    """Replace the reward of completions with fewer tokens by `reward_penalty`."""
    reward_penalty: float | None = None
    """The reward of such completions."""
    mask_no_eos_with_zero: bool = False
    """Replace the reward of completions without end of sequence by 0."""
    overlong_buffer: int = Field(0, ge=0)
    """Add min(−(length − (`sampling.max_tokens` − overlong_buffer)) / overlong_buffer ·
    overlong_factor, 0) (DAPO). 0: nothing."""
    overlong_factor: float = Field(1.0, gt=0)
    """The reward that a completion of `sampling.max_tokens` loses."""
    mask_truncated: bool = False
    """Mask completions that were truncated, at `sampling.max_tokens` or
    `rollout.straggler_deadline`, from the loss. They still count in their group's statistics."""

    @model_validator(mode="after")
    def _penalties(self) -> Self:
        penalised = self.penalise_no_eos or self.min_response_length > 0
        refuse_if(
            penalised and self.reward_penalty is None,
            "penalise_no_eos and min_response_length replace a reward by reward_penalty: set "
            "reward_penalty, for example to -1",
        )
        refuse_if(
            self.reward_penalty is not None and not penalised,
            f"reward_penalty {self.reward_penalty} is never used: set penalise_no_eos or "
            "min_response_length, or leave it out",
        )
        refuse_if(self.scale == 0, "scale 0 makes every reward 0: set another")
        refuse_if(
            self.penalise_no_eos and self.mask_no_eos_with_zero,
            "penalise_no_eos and mask_no_eos_with_zero both replace the reward of a completion "
            "without end of sequence: leave mask_no_eos_with_zero out, or penalise_no_eos (and "
            "reward_penalty, unless min_response_length uses it)",
        )
        return self
