"""The choice of the sampled completions that are trained."""

from typing import Literal, Self

from pydantic import Field, model_validator

from services.contracts.config.base import Section


class DynamicSampling(Section):
    """Filters groups whose trained samples all have the same reward, and groups of prompts that
    are too hard or too easy (DAPO). They do not count towards a batch."""

    low: float | None = None
    """Also filter groups with a mean reward below this (too hard)."""
    high: float | None = None
    """Also filter groups with a mean reward above this (too easy)."""
    max_filtered: int = Field(10, ge=1)
    """The run fails when more than max_filtered · `prompts_per_step` groups are filtered for one
    batch."""

    @model_validator(mode="after")
    def _range(self) -> Self:
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError(
                f"low {self.low:g} is not below high {self.high:g}: every group would be filtered"
            )
        return self


class BestOf(Section):
    """Samples more completions of a prompt than it trains (AReaL)."""

    generation_size: int = Field(ge=2)
    """Completions sampled per prompt; `samples_per_prompt` of them are trained."""
    keep: Literal["best", "worst", "both"] = "best"
    """The completions that are trained. both: half the best and half the worst; an odd number takes
    one more of the best."""
