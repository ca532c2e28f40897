"""How long a run trains, in what pieces, what it keeps, and how it is measured."""

from typing import Literal

from pydantic import Field, model_validator

from services.contracts.config.base import Section


class Schedule(Section):
    """Learning rate over the run, as a share of its peak."""

    type: Literal["constant", "linear", "cosine", "wsd"] = "constant"
    """constant; linear to the floor; cosine to the floor; wsd: flat, then linear to the floor."""
    warmup_steps: int = Field(0, ge=0)
    """Steps of linear warm-up."""
    floor: float = Field(0.0, ge=0, le=1)
    """Share of the peak at the end."""
    decay_share: float = Field(0.2, gt=0, le=1)
    """wsd: share of the steps that the decay takes."""


class Training(Section):
    """How long, in what pieces, and what is kept."""

    max_steps: int | None = Field(None, ge=1)
    """Batches to train; default: `epochs` over the dataset as it is when the run is submitted: rows
    that are added later are drawn, and do not make the run longer."""
    epochs: float | None = Field(None, gt=0)
    """Passes over the dataset, where max_steps is not given. Default 1."""
    tokens_per_microbatch: int = Field(16_384, ge=16)
    """Most tokens, prompts included, in one forward and backward pass of one rank."""
    activation_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third slower."""
    compile: bool = False
    """torch.compile for the blocks of all models, but not their attention. Needs a C compiler, and
    a minute or two at each start."""
    checkpoint_every: int = Field(10, ge=1)
    """Steps between checkpoints. A crash repeats the steps since the last one, from the same
    groups."""
    keep_checkpoints: int = Field(2, ge=1)
    """Newest checkpoints kept on disk."""
    log_samples: int = Field(4, ge=0, le=64)
    """Completions of each batch that are written down with their rewards, to be read (`headrace
    samples RUN`): the best and the worst of one group, and others. A few kB each; 0: none.
    """
    seed: int = Field(0, ge=0)
    """Order of the prompts and everything random in the learner."""

    @model_validator(mode="after")
    def _one_length(self) -> "Training":
        """`max_steps` and `epochs` together."""
        if self.max_steps is not None and self.epochs is not None:
            raise ValueError("training has both max_steps and epochs: leave one out")
        return self


class Midtrain(Section):
    """Length and batch of a supervised run."""

    max_steps: int = Field(500, ge=1)
    """Optimizer steps."""
    rows_per_step: int = Field(128, ge=1)
    """Rows per optimizer step."""
    tokens_per_microbatch: int = Field(16_384, ge=16)
    """Most tokens in one forward and backward pass of one rank."""
    validation_share: float = Field(0.02, ge=0, lt=1)
    """Share of the rows kept out of training to measure the loss on."""
    validate_every: int = Field(100, ge=1)
    """Steps between validations."""
    seed: int = Field(0, ge=0)
    """Initial weights and order of the rows."""


class Evaluation(Section):
    """Scores on held-out rows, all from one policy version."""

    dataset: str = Field(min_length=1)
    """Name or id of the held-out dataset."""
    every: int | None = Field(None, ge=1)
    """Steps between evaluations; default: only at the start and the end."""
    rows: int | None = Field(None, ge=1)
    """Only the first so many rows."""
    samples: int = Field(1, ge=1)
    """Completions per row."""
    temperature: float = Field(0.0, ge=0)
    """0 is greedy."""
    max_tokens: int | None = Field(None, ge=1)
    """Longest completion; default: sampling.max_tokens."""
    at_start: bool = True
    """Also before the first step."""
