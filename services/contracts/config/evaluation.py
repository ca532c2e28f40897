"""Evaluation of a run: held-out datasets, how each is answered and scored, and when."""

from typing import Annotated

from pydantic import Field, model_validator

from headrace.config_keys import MOST_DATASETS, keys_of
from services.contracts.config.base import Section, refuse_if
from services.contracts.config.data import PromptOptions
from services.contracts.config.rewards import MOST_REWARDS, RewardComponent
from services.contracts.config.rollout import Sampling

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"


class HeldOut(Section):
    """A held-out dataset, and how its rows are answered and scored. In `more`, an option that is
    left out is as in `evaluation` itself."""

    dataset: str = Field(min_length=1)
    """Name or id of the held-out dataset."""
    name: str | None = Field(None, pattern=NAME)
    """The name in metrics and on the page; default: the dataset's name."""
    rows: int | None = Field(None, ge=1)
    """Only this many rows, the first ones; default: all."""
    samples: int | None = Field(None, ge=1, le=1024)
    """Completions per row; default: 1."""
    temperature: float | None = Field(None, ge=0, le=10)
    """Sampling temperature; default: 0, which is greedy."""
    max_tokens: int | None = Field(None, ge=1)
    """Longest completion; default: sampling.max_tokens."""
    category: str | None = Field(None, min_length=1)
    """A column of the rows by whose values the metrics are also given, e.g. `level`; of a column
    that is an object, `COLUMN.KEY`."""
    system: str | None = None
    """System message before each prompt that is not a chat already; default: as in `data`."""
    template: str | None = None
    """Text around a text prompt, with the placeholder {prompt}; default: the dataset's own, if it
    was uploaded with a mapping that brings one; else as in `data`."""
    rewards: (
        Annotated[list[RewardComponent], Field(min_length=1, max_length=MOST_REWARDS)] | None
    ) = None
    """Components of its reward; default: the dataset's own, else the run's `rewards`."""

    @model_validator(mode="after")
    def _template(self) -> "HeldOut":
        if self.template is not None:
            PromptOptions(template=self.template)
        return self


class Evaluation(HeldOut):
    """Accuracy on held-out rows, each time by one version, while training goes on."""

    more: list[HeldOut] = Field([], max_length=MOST_DATASETS)
    """More held-out datasets. They are evaluated one after the other."""
    every: int | None = Field(None, ge=1)
    """Steps between evaluations; default: only at start and end. One that falls due while another
    is open waits for it."""
    at_start: bool = True
    """Also evaluate before the first step."""
    workers: int = Field(1, ge=1)
    """Workers that answer while training goes on: those that only evaluate
    (`HEADRACE_EVALUATION_ONLY`), then idle ones. The others go on with training alone. After the
    last step all workers answer."""
    share: float = Field(0.5, gt=0, le=1)
    """The share of such a worker's completions in vLLM that evaluation may use while the worker has
    prompts to train on. Evaluation gets more if training leaves room."""

    @property
    def sets(self) -> list[HeldOut]:
        """All held-out datasets, each with its own options."""
        inherited = {name: getattr(self, name) for name in HeldOut.model_fields}
        for key in ("dataset", "name"):
            del inherited[key]
        first = HeldOut(dataset=self.dataset, name=self.name, **inherited)
        return [first, *(_filled(held_out, inherited) for held_out in self.more)]

    @property
    def by_key(self) -> dict[str, HeldOut]:
        """The same, by the keys of their sections: `evaluation`, `evaluation.more.0`, …"""
        return dict(zip(keys_of("evaluation", "more", len(self.more)), self.sets, strict=True))

    @model_validator(mode="after")
    def _distinct(self) -> "Evaluation":
        names = [held_out.name or held_out.dataset for held_out in (self, *self.more)]
        twice = next((name for name in names if names.count(name) > 1), None)
        refuse_if(
            twice is not None,
            f"two held-out datasets are called {twice!r}: give each a name of its own",
        )
        return self


def _filled(held_out: HeldOut, inherited: dict[str, object]) -> HeldOut:
    missing = {name: value for name, value in inherited.items() if getattr(held_out, name) is None}
    return held_out.model_copy(update=missing)


class EvaluationSampling(Sampling):
    """How answers are sampled."""

    temperature: float = Field(0.0, ge=0, le=10)
    """0 is greedy."""


class ResolvedSet(Section):
    """A held-out dataset with all that is needed to answer and score its rows."""

    name: str
    """The name in metrics and on the page."""
    dataset: str
    """The dataset's id."""
    dataset_name: str
    rows: int
    """Rows to answer, the first ones."""
    samples: int
    """Completions per row."""
    sampling: EvaluationSampling
    prompt: PromptOptions
    rewards: list[RewardComponent]
    category: str | None = None


def resolved(
    held_out: HeldOut,
    *,
    id: str,
    dataset_name: str,
    rows: int,
    sampling: Sampling,
    prompt: PromptOptions,
    rewards: list[RewardComponent],
) -> ResolvedSet:
    """Resolve `held_out` for its dataset, given by id, name and row count. The run's options fill
    in the options that `held_out` leaves out."""
    prompt_options = {"system": held_out.system, "template": held_out.template}
    options = {
        "system": prompt.system,
        "template": prompt.template,
        "chat_template": prompt.chat_template,
        **{name: value for name, value in prompt_options.items() if value is not None},
    }
    fields = sampling.model_dump() | {
        "temperature": held_out.temperature or 0.0,
        "max_tokens": held_out.max_tokens or sampling.max_tokens,
        "ignore_eos": False,
        "seed": None,
    }
    return ResolvedSet(
        name=held_out.name or dataset_name,
        dataset=id,
        dataset_name=dataset_name,
        rows=min(rows, held_out.rows or rows),
        samples=held_out.samples or 1,
        sampling=EvaluationSampling(**fields),
        prompt=PromptOptions(**options),
        rewards=held_out.rewards or rewards,
        category=held_out.category,
    )
