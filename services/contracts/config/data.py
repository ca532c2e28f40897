"""The rows of a run: prompts for the policy, answers for a supervised run."""

from typing import Literal, Self

from pydantic import Field, model_validator

from services.contracts.config.base import Section


class PromptOptions(Section):
    """How a row's prompt becomes the policy's input (`services.contracts.rendering`)."""

    system: str | None = None
    """System message before each prompt that is not a chat already."""
    template: str = "{prompt}"
    """Text around a text prompt, e.g. to ask for an answer format."""
    chat_template: Literal["auto", "none"] = "auto"
    """auto: the tokenizer's chat template, if it has one; none: prompts stay plain text."""

    @model_validator(mode="after")
    def _placeholder(self) -> Self:
        if "{prompt}" not in self.template:
            raise ValueError(f"template {self.template!r} lacks the placeholder {{prompt}}")
        return self


class DatasetFilter(Section):
    """Filters prompts that stay too hard or too easy out of later epochs (AReaL)."""

    low: float | None = None
    """A prompt is too hard if the mean reward of its samples, before shaping, is below."""
    high: float | None = None
    """It is too easy if that mean is above."""
    passes: int = Field(2, ge=1)
    """Times in a row that a prompt must be so."""
    max_share: float = Field(0.1, gt=0, le=0.9)
    """At most this share of the dataset is filtered, first come, first served."""

    @model_validator(mode="after")
    def _range(self) -> Self:
        if self.low is None and self.high is None:
            raise ValueError("filter needs low or high: set one, or leave filter out")
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError(
                f"low {self.low:g} is not below high {self.high:g}: every prompt would be outside"
            )
        return self

    def outside(self, reward: float) -> str | None:
        """Which bound a prompt of this mean reward violates, if any."""
        if self.low is not None and reward < self.low:
            return f"below data.filter.low {self.low:g}"
        if self.high is not None and reward > self.high:
            return f"above data.filter.high {self.high:g}"
        return None


class Data(PromptOptions):
    """The prompts."""

    dataset: str = Field(min_length=1)
    """Name or id of an uploaded dataset."""
    filter: DatasetFilter | None = None
    """Filter prompts that stay too hard or too easy: their later tasks end at once, as
    `filtered_prompt`, and other prompts take their place."""


class Component(Section):
    """A dataset, and how much of an epoch it makes up."""

    dataset: str = Field(min_length=1)
    """Name or id of an uploaded dataset."""
    repeats: float | None = Field(None, gt=0, le=1000)
    """How often each of its rows comes in an epoch, e.g. 3, or 0.5 for every other row; default:
    once."""
    weight: float | None = Field(None, gt=0)
    """Its share of an epoch, in proportion to the weights of the other datasets, instead of
    `repeats`. An epoch then has as many rows as all datasets have together."""


class SFTData(PromptOptions, Component):
    """The rows to learn from: conversations, prompts with answers, or plain text; with objective
    dpo prompts with a `chosen` and a `rejected` answer."""

    mix: list[Component] = []
    """More datasets, mixed in."""
    train_on: Literal["assistant", "last", "all"] = "assistant"
    """The tokens that the loss counts. `assistant`: every turn of the assistant, and its end.
    `last`: the last one alone. `all`: every token, which plain text needs. The answer to a prompt
    is one turn of the assistant."""
    max_seq_len: int | None = Field(None, ge=8)
    """Longest row, in tokens; default: the positions of the model."""
    overlong: Literal["refuse", "skip", "crop"] = "refuse"
    """What happens with a longer row: the run fails and names it; it is left out; or its end is cut
    off. Of two answers the longer one decides, and each is cut off by itself."""

    @property
    def components(self) -> list[Component]:
        """All datasets, in the order of the config."""
        own = Component(dataset=self.dataset, repeats=self.repeats, weight=self.weight)
        return [own, *self.mix]

    @model_validator(mode="after")
    def _amounts(self) -> Self:
        weighted = [one.dataset for one in self.components if one.weight is not None]
        repeated = [one.dataset for one in self.components if one.repeats is not None]
        if weighted and repeated:
            raise ValueError(
                f"{weighted[0]} has a weight and {repeated[0]} has repeats: use one of the two for "
                "all datasets"
            )
        if weighted and len(weighted) < len(self.components):
            missing = next(one.dataset for one in self.components if one.weight is None)
            raise ValueError(
                f"{weighted[0]} has a weight and {missing} has none: give each dataset one"
            )
        return self
