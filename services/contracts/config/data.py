"""The rows of a run: prompts for the policy, answers for a supervised run."""

import json
import re
from collections.abc import Sequence
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from headrace.config_keys import MOST_DATASETS
from services.contracts.config.base import Section
from services.contracts.config.episodes import Episode
from services.contracts.config.rewards import MOST_REWARDS, RewardComponent

DAY = 86_400.0
MOST_PLACES = 16
"""The most places of the prompt in a template."""
MOST_TEMPLATE = 1 << 20
"""Characters of a chat template, as of one in a model's folder."""
MOST_VARIABLES = 16 << 10
"""Characters of a chat template's variables, as JSON."""
NO_VARIABLES = frozenset(
    {
        "add_generation_prompt", "chat_template", "continue_final_message", "conversation",
        "max_length", "messages", "padding", "return_assistant_tokens_mask", "return_dict",
        "return_tensors", "self", "tokenize", "tokenizer_kwargs", "tools", "truncation",
    }
)  # fmt: skip
"""Names that have a meaning of their own when a template is rendered."""
NO_DATASET = (
    *(
        "dataset",
        "mix",
        "order",
        "filter",
        "curriculum",
        "name",
        "repeats",
        "weight",
        "template",
        "system",
    ),
    "long_prompts",
)
"""Keys of `data` that need a dataset."""


class PromptOptions(Section):
    """How a row's prompt becomes the policy's input (`services.contracts.rows.rendering`)."""

    system: str | None = None
    """System message before each prompt, unless it is a chat that has one."""
    template: str = "{prompt}"
    """Text around a text prompt, e.g. to ask for an answer format. A chat stays as it is."""
    chat_template: str = Field("auto", min_length=1, max_length=MOST_TEMPLATE)
    """auto: the tokenizer's chat template, if it has one; none: prompts stay plain text; else the
    text of a Jinja template, which the model keeps. `headrace submit` also takes the PATH of a
    file."""
    chat_template_kwargs: dict[str, Any] = {}
    """Variables of the chat template by name, e.g. `{enable_thinking: false}` for Qwen3. They hold
    wherever the run renders a prompt: in training, evaluation, sessions and `headrace chat`."""

    @property
    def own_template(self) -> str | None:
        """The text of the chat template, if the config brings one."""
        return None if self.chat_template in ("auto", "none") else self.chat_template

    @field_validator("chat_template")
    @classmethod
    def _is_a_template(cls, template: str) -> str:
        if template not in ("auto", "none") and "{{" not in template and "{%" not in template:
            raise ValueError(
                f"{template[:100]!r} is neither auto, none, nor the text of a Jinja template; "
                "`headrace submit` reads a file where it is started, and sends its text"
            )
        return template

    @field_validator("chat_template_kwargs")
    @classmethod
    def _are_variables(cls, variables: dict[str, Any]) -> dict[str, Any]:
        check_variables(variables)
        return variables

    @model_validator(mode="after")
    def _placeholder(self) -> Self:
        check_template(self.template)
        if self.chat_template == "none" and self.chat_template_kwargs:
            raise ValueError(
                "chat_template_kwargs are variables of a chat template, and chat_template is none: "
                "leave one of the two out"
            )
        return self


def check_variables(variables: dict[str, Any]) -> None:
    """Raise ValueError for variables that no chat template can be given."""
    for name in variables:
        if not name.isidentifier() or name.startswith("_"):
            raise ValueError(f"{name[:100]!r} is no name of a variable")
        if name in NO_VARIABLES:
            raise ValueError(f"{name!r} is no variable of a template: a run sets it itself")
    try:
        size = len(json.dumps(variables, allow_nan=False))
    except ValueError:
        raise ValueError("a variable holds NaN or Infinity, which JSON cannot carry") from None
    if size > MOST_VARIABLES:
        raise ValueError(
            f"variables have {size:,} characters as JSON; {MOST_VARIABLES:,} is the most"
        )


PLACEHOLDER = re.compile(r"(?<![\\\w$^}{])\{([^\W\d]\w*)\}(?!\})")
"""A name in braces, as other systems' templates have columns. LaTeX's arguments and JSON differ."""


def placeholders(template: str) -> list[str]:
    """The names in braces in `template`, each once: also those that nothing replaces."""
    return list(dict.fromkeys(PLACEHOLDER.findall(template)))


def check_template(template: str) -> None:
    """Raise ValueError if `template` has no place for a prompt."""
    if "{prompt}" not in template:
        others = [name for name in placeholders(template) if name != "prompt"]
        hint = f"; {{{others[0]}}} is none: {{prompt}} is the row's prompt" if others else ""
        raise ValueError(f"template {template!r} lacks the placeholder {{prompt}}{hint}")
    # A prompt of a megabyte in a template of another would be more than any memory.
    if (count := template.count("{prompt}")) > MOST_PLACES:
        raise ValueError(
            f"template has the placeholder {{prompt}} {count:,} times; {MOST_PLACES} is the most"
        )


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
        """Name the bound that a prompt of this mean reward violates, if any."""
        if self.low is not None and reward < self.low:
            return f"below data.filter.low {self.low:g}"
        if self.high is not None and reward > self.high:
            return f"above data.filter.high {self.high:g}"
        return None


class Curriculum(Section):
    """Prefers prompts that are solved now and then. With p, the running pass rate of a row, its
    task is sampled with probability 4·p·(1 − p), the variance of success as a share of the largest
    (Foster et al. 2025); a row without a pass rate is sampled. p is the mean of the newest group's
    share of correct answers and of what p was before."""

    least: float = Field(0.1, gt=0, le=1)
    """Least probability, so that prompts that are always or never solved are tried again."""


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


class PromptDataset(Component):
    """A dataset of prompts, and what metrics call it."""

    name: str | None = Field(None, pattern=r"^[A-Za-z0-9_.#-]{1,100}$")
    """Name in the metrics of a mixture; default: the dataset's, numbered if it is there more than
    once (`words`, `words#2`)."""


class MixedPrompts(PromptDataset):
    """A dataset that is mixed in. Keys that it leaves out are as for `data.dataset`."""

    system: str | None = None
    """System message; default: `data.system`."""
    template: str | None = None
    """Text around a text prompt; default: `data.template`."""
    chat_template: Literal["auto", "none"] | None = None
    """Default: `data.chat_template`."""
    rewards: list[RewardComponent] = Field([], max_length=MOST_REWARDS)
    """Components of the reward of its answers; default: the run's `rewards`."""
    max_tokens: int | None = Field(None, ge=1)
    """Longest completion, in tokens; default: `sampling.max_tokens`."""
    episode: Episode | None = None
    """How a completion is made; default: `rollout.episode`."""

    @model_validator(mode="after")
    def _placeholder(self) -> Self:
        if self.template is not None:
            check_template(self.template)
        return self


class Data(PromptOptions, PromptDataset):
    """The prompts."""

    dataset: str = ""
    """Name or id of an uploaded dataset, or a dataset of the hub, `hf://ORG/NAME/CONFIG/SPLIT`,
    which the gateway fetches once. Required, unless `source` is `sessions`."""
    source: Literal["dataset", "sessions"] = "dataset"
    """With `sessions` the run has no dataset: applications open sessions as they have conversations
    (docs/agents.md, live traffic). Needs `rollout.episode: sessions`."""
    reward_deadline: float | None = Field(None, ge=1, le=30 * 86_400)
    """With `source: sessions`: seconds after a session's end by which its reward has to come. One
    without a reward by then is discarded. Default: a day."""
    mix: list[MixedPrompts] = Field([], max_length=MOST_DATASETS)
    """More datasets, mixed in. A mixture has the rows that its datasets have at submission."""
    long_prompts: Literal["drop", "cut"] = "drop"
    """How long prompts are handled. `drop`: the row of a prompt that fills
    `rollout.vllm.max_model_len` is not trained. `cut`: the longest text of a prompt loses its
    beginning, so that `max_tokens` of an answer fit after the prompt. Events of the run count the
    long prompts."""
    order: Literal["shuffled", "file"] = "shuffled"
    """The order of the rows in an epoch. `shuffled`: another one in each epoch, by `training.seed`.
    `file`: as they were uploaded, in every epoch."""
    filter: DatasetFilter | None = None
    """Filter prompts that stay too hard or too easy: their later tasks end at once, as
    `filtered_prompt`, and other prompts take their place."""
    curriculum: Curriculum | None = None
    """Sample prompts by their running pass rate: other tasks end at once, as `curriculum`, and the
    next prompts take their place. `{}` is enough."""

    @property
    def live(self) -> bool:
        """Whether applications open the sessions."""
        return self.source == "sessions"

    @property
    def reward_seconds(self) -> float:
        """`reward_deadline`, or its default."""
        return self.reward_deadline or DAY

    @property
    def components(self) -> list[PromptDataset]:
        """All datasets, in the order of the config."""
        return [self, *self.mix]

    @property
    def names(self) -> list[str]:
        """The names that metrics give the components, in the same order."""
        return numbered([component.name or component.dataset for component in self.components])

    @model_validator(mode="after")
    def _source(self) -> Self:
        if not self.live:
            if not self.dataset:
                raise ValueError("dataset is required")
            if self.reward_deadline is not None:
                raise ValueError(
                    "reward_deadline is for sessions that applications open: set source to "
                    "sessions, or leave it out"
                )
            return self
        for key in NO_DATASET:
            if getattr(self, key) != Data.model_fields[key].get_default(call_default_factory=True):
                raise ValueError(
                    f"{key} is for the rows of a dataset, and with source sessions applications "
                    "bring the prompts: leave it out"
                )
        return self

    @model_validator(mode="after")
    def _amounts(self) -> Self:
        alone = next((key for key in ("repeats", "weight") if getattr(self, key)), None)
        if alone and not self.mix:
            raise ValueError(
                f"{alone} says how much of a mixture the dataset is, and it is alone: leave it "
                "out, or add other datasets as mix"
            )
        if self.mix and self.order == "file":
            raise ValueError(
                "order file is that of one dataset's file, and a mixture has the files of several: "
                "leave order out, or leave mix out"
            )
        check_amounts(self.components)
        return self


def numbered(names: Sequence[str]) -> list[str]:
    """Return `names`, made unique: the second use of a name gets `#2`, the third `#3`, or the next
    number that is free."""
    distinct: list[str] = []
    for i, name in enumerate(names):
        count = names[:i].count(name) + 1
        called = name if count == 1 else f"{name}#{count}"
        while called in distinct or (count > 1 and called in names):
            count += 1
            called = f"{name}#{count}"
        distinct.append(called)
    return distinct


class SFTData(PromptOptions, Component):
    """The rows to learn from: conversations, prompts with answers, or plain text; with objective
    dpo prompts with a `chosen` and a `rejected` answer."""

    mix: list[Component] = Field([], max_length=MOST_DATASETS)
    """More datasets, mixed in."""
    train_on: Literal["assistant", "last", "all"] = "assistant"
    """The tokens that the loss counts. `assistant`: every turn of the assistant, and its end.
    `last`: the last one alone. `all`: every token, which plain text needs. The answer to a prompt
    is one turn of the assistant."""
    max_seq_len: int | None = Field(None, ge=8)
    """Longest row, in tokens; default: the positions of the model."""
    overlong: Literal["refuse", "skip", "crop"] = "refuse"
    """How to treat a longer row: `refuse` fails the run and names the row, `skip` leaves the row
    out, `crop` cuts its end off. The run warns with the number of rows that are left out or cut.
    If a row has two answers the longer one decides, and each is cut off by itself."""

    @property
    def components(self) -> list[Component]:
        """All datasets, in the order of the config."""
        first = Component(dataset=self.dataset, repeats=self.repeats, weight=self.weight)
        return [first, *self.mix]

    @model_validator(mode="after")
    def _amounts(self) -> Self:
        if self.weight and not self.mix:
            raise ValueError(
                "weight is a share among several datasets, and there is one: leave it out, or add "
                "other datasets as mix"
            )
        check_amounts(self.components)
        return self


def check_amounts(components: Sequence[Component]) -> None:
    """Raise ValueError where some datasets have a weight and others none, or repeats. It names
    them by their keys: the gateway has put ids in place of names."""
    keys = ["data.dataset", *(f"data.mix.{i}" for i in range(len(components) - 1))]
    named = list(zip(keys, components, strict=True))
    weighted = [key for key, component in named if component.weight is not None]
    repeated = [key for key, component in named if component.repeats is not None]
    if weighted and repeated:
        raise ValueError(
            f"{weighted[0]} has a weight and {repeated[0]} has repeats: use one of the two for "
            "all datasets"
        )
    if weighted and len(weighted) < len(components):
        missing = next(key for key in keys if key not in weighted)
        raise ValueError(
            f"{weighted[0]} has a weight and {missing} has none: give each dataset one"
        )
