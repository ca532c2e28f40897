"""What the policy is asked, and what a supervised run imitates."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from services.contracts.config.base import Section


class PromptOptions(Section):
    """How a row's prompt becomes what the policy reads (`services.contracts.rendering`)."""

    system: str | None = None
    """System message put before each prompt that is not already a chat."""
    template: str = "{prompt}"
    """What a text prompt is put into, e.g. to ask for an answer format."""
    chat_template: Literal["auto", "none"] = "auto"
    """auto: the tokenizer's chat template where it has one; none: prompts go in as plain text."""

    @model_validator(mode="after")
    def _placeholder(self) -> Self:
        """A template without `{prompt}`."""
        if "{prompt}" not in self.template:
            raise ValueError(f"template {self.template!r} lacks the placeholder {{prompt}}")
        return self


class DatasetFilter(Section):
    """Prompts that stay too hard or too easy are not drawn again (AReaL)."""

    low: float | None = None
    """Too hard: the mean reward of what was sampled, before shaping, is below."""
    high: float | None = None
    """Too easy: it is above."""
    passes: int = Field(2, ge=1)
    """Draws in a row that a prompt has to be so."""
    max_share: float = Field(0.1, gt=0, le=0.9)
    """Most of the dataset's rows that are retired, those first that are so first."""

    @model_validator(mode="after")
    def _range(self) -> Self:
        """Neither `low` nor `high`, or a `low` that is not below `high`."""
        if self.low is None and self.high is None:
            raise ValueError("filter retires nothing without low or high: set one, or leave it out")
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError(
                f"low {self.low:g} is not below high {self.high:g}: every prompt would be outside"
            )
        return self

    def outside(self, reward: float) -> str | None:
        """What is wrong with a prompt of this mean reward; None: nothing."""
        if self.low is not None and reward < self.low:
            return f"below data.filter.low {self.low:g}"
        if self.high is not None and reward > self.high:
            return f"above data.filter.high {self.high:g}"
        return None


class Data(PromptOptions):
    """What the policy is asked."""

    dataset: str = Field(min_length=1)
    """Name or id of an uploaded dataset."""
    filter: DatasetFilter | None = None
    """Retire prompts that stay too hard or too easy. A retired row's draws in later passes end at
    once, as `retired`, and others are drawn in their place."""


class MidtrainData(PromptOptions):
    """Rows to imitate: prompt and answer."""

    dataset: str = Field(min_length=1)
    """Name or id of an uploaded dataset whose rows have answers."""
    mix: list[Annotated[str, Field(min_length=1)]] = []
    """Further datasets like it, whose rows are mixed in. One that is named twice, here or with
    `dataset`, counts twice in each epoch."""
    train_on: Literal["answer", "all"] = "answer"
    """Which tokens the loss counts: the answer and the end of sequence, or all."""
