"""Length, micro-batches and checkpoints of a run."""

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from headrace.config_keys import MOST_DATASETS
from services.contracts.config.base import Section, refuse_if

Parallel = Literal["auto", "ddp", "fsdp"]
Automatic = Literal["auto"] | bool
Backend = Literal["inductor", "cudagraphs", "aot_eager", "eager"]
Offloaded = Literal["optimizer", "reference", "lagged", "critic", "teacher"]


class Schedule(Section):
    """Learning rate over the run, as a share of its peak."""

    type: Literal["constant", "linear", "cosine", "wsd"] = "constant"
    """constant; linear to the floor; cosine to the floor; wsd: flat, then linear to the floor."""
    warmup_steps: int = Field(0, ge=0)
    """Steps (batches, however many optimizer updates each has) of linear warm-up."""
    floor: float = Field(0.0, ge=0, le=1)
    """Share of the peak at the end."""
    decay_share: float = Field(0.2, gt=0, le=1)
    """wsd: share of the steps that the decay takes."""


class SFTSchedule(Schedule):
    """Learning rate of a supervised run, as a share of its peak."""

    type: Literal["constant", "linear", "cosine", "wsd"] = "wsd"
    """constant; linear to the floor; cosine to the floor; wsd: flat, then linear to the floor."""


class Passes(Section):
    """How a rank makes its forward and backward passes."""

    tokens_per_microbatch: int = Field(16_384, ge=16)
    """Tokens in one forward and backward pass of one rank, prompts included, at most. A longer
    sequence has a pass of its own."""
    activation_checkpointing: Automatic = "auto"
    """Compute the activations of each block again in the backward pass, instead of keeping them:
    less memory, about a third slower, the same gradients. `auto`: where those of the largest
    micro-batch would not fit into the GPU with all else, by the estimate that
    `headrace submit --dry-run` shows; not on a CPU."""
    parallel: Parallel = "auto"
    """How several ranks share the training. `ddp`: each holds all weights, gradients and optimizer
    state. `fsdp`: each holds a slice of them, and gathers a block when it computes it. `auto`: ddp
    on a CPU, or if weights, gradients and optimizer state fit into half of a GPU; else fsdp."""
    context_parallel: int = Field(1, ge=1)
    """Ranks that share each micro-batch, for sequences too long for one: each computes a stretch of
    the tokens, and for attention a share of the heads. It has to divide the ranks and the model's
    attention heads. A micro-batch then has `tokens_per_microbatch` for each rank that shares it."""
    compile: Automatic = "auto"
    """torch.compile the blocks of all models, except attention. Needs a C compiler, and a minute
    or two at each start. `auto`: on CUDA, for models without experts, where something small can be
    compiled at the start. `headrace why` says what a run does."""
    compile_backend: Backend = "inductor"
    """The backend of torch.compile. `inductor` writes kernels. `cudagraphs` records those of
    PyTorch. `aot_eager` and `eager` only trace the blocks, to find out which part of compiling
    changes a number."""

    @model_validator(mode="after")
    def _compiled(self) -> Self:
        refuse_if(
            self.compile is False and self.compile_backend != "inductor",
            f"compile_backend {self.compile_backend} is never used with compile false: leave it "
            "out, or set compile to true",
        )
        return self


class Training(Passes):
    """Length, micro-batches and checkpoints."""

    max_steps: int | None = Field(None, ge=0)
    """Batches to train; default: `epochs` over the dataset as it is at submission. Rows that are
    added later are sampled too, but do not make the run longer. 0: train nothing, only evaluate
    (`headrace eval` makes such a run)."""
    epochs: float | None = Field(None, gt=0, le=10_000)
    """Passes over the dataset, instead of max_steps. Default: 1."""
    offload: list[Offloaded] = []
    """State that stays in host memory, and is on the GPU only while it is used. `optimizer`: the
    state of all optimizers, copied there and back for each update. `reference`, `lagged` (the copy
    of proximal lagged), `teacher`: their weights, copied there once a step. `critic`: its weights,
    copied there twice a step and back once, and its optimizer's state, once each way."""
    checkpoint_every: int = Field(10, ge=1)
    """Steps between checkpoints. After a crash the steps since the last one are trained again, on
    the same groups."""
    checkpoint_seconds: float | None = Field(None, gt=0)
    """Also make a checkpoint after the first step that ends this many seconds after the last one;
    default: `checkpoint_every` alone decides."""
    keep_checkpoints: int = Field(2, ge=1)
    """Checkpoints kept on disk, the newest ones. Pinned ones stay besides, and for a supervised run
    the best one."""
    keep_every: int | None = Field(None, ge=1)
    """Also keep the first checkpoint of each such number of steps: with 100 those of the steps 100,
    200 and so on, or the next ones after these. Default: none."""
    seed: int = Field(0, ge=0)
    """Seed of the prompts' order and of all that is random in the learner."""

    @model_validator(mode="after")
    def _one_length(self) -> "Training":
        if self.max_steps is not None and self.epochs is not None:
            raise ValueError("training has max_steps and epochs: leave one out")
        return self


class SFTTraining(Training):
    """Length, batch, micro-batches and checkpoints of a supervised run."""

    rows_per_step: int | None = Field(None, ge=1)
    """Rows of each step, whatever their lengths. Default: 128, unless there is `packing`."""

    @model_validator(mode="after")
    def _no_other_models(self) -> "SFTTraining":
        if self.max_steps == 0:
            raise ValueError("max_steps is 0, and a supervised run only trains: set 1 or more")
        other = [name for name in self.offload if name not in ("optimizer", "reference")]
        if other:
            raise ValueError(
                f"offload {other[0]} is a model that a supervised run does not load: leave it out"
            )
        return self


class Packing(Section):
    """Fill rows of `data.max_seq_len` tokens with conversations that do not see each other, by best
    fit: the longest one that still fits whole comes next. A step then has a number of tokens."""

    tokens_per_step: int = Field(ge=8)
    """Tokens of each step, padding included: a multiple of `data.max_seq_len`."""
    when_none_fits: Literal["pad", "crop"] = "pad"
    """The rest of a row into which no waiting conversation fits. `pad` leaves it empty, which costs
    no computation. `crop` fills it with the beginning of a conversation, whose end is lost."""
    crop: Literal["shortest", "first"] = "shortest"
    """The conversation that `when_none_fits: crop` cuts. `shortest`: the shortest, which loses
    least. `first`: the one that has waited longest."""
    buffer: int = Field(1000, ge=1, le=100_000)
    """Conversations among which the one that fits best is chosen."""

    @property
    def cropped(self) -> Literal["shortest", "first"] | None:
        """`crop`, if anything is cropped."""
        return self.crop if self.when_none_fits == "crop" else None

    @model_validator(mode="after")
    def _crop(self) -> "Packing":
        refuse_if(
            self.crop != "shortest" and self.when_none_fits == "pad",
            f"crop {self.crop} says which conversation is cut, and when_none_fits pad cuts none: "
            "set when_none_fits to crop, or leave crop out",
        )
        return self


class ValidationSet(Section):
    """A dataset to validate on; its name alone is enough."""

    dataset: str = Field(min_length=1)
    """Name or id of an uploaded dataset."""
    rows: int | None = Field(None, ge=1)
    """At most this many of its rows, evenly spaced; default: `validation.rows`."""


class Validation(Section):
    """Loss and bits per byte of rows that are not trained, before the first step, every few steps
    and at the end. The best checkpoint is kept."""

    datasets: list[ValidationSet] = Field([], max_length=MOST_DATASETS)
    """The validation datasets, by name or as sections; default: a share of the rows to train on is
    kept out."""
    share: float = Field(0.02, ge=0, lt=1)
    """Share of each dataset's rows that is kept out, unless there are `datasets`; 0: no
    validation."""
    every: int = Field(100, ge=1)
    """Steps between validations."""
    rows: int | None = Field(2000, ge=1)
    """At most this many rows of each dataset, evenly spaced; null: all. The first step waits for
    them, too."""
    tokens: int | None = Field(None, ge=1)
    """About this many tokens in all: each dataset gives the same share of its rows, evenly spaced.
    Default: all tokens of the rows."""
    best: Literal["loss", "bits_per_byte"] = "loss"
    """The checkpoint that is kept has the lowest loss per token, or the fewest bits per byte."""
    patience: int | None = Field(None, ge=1)
    """End the run after this many validations in a row without a new minimum of `best`; default:
    never."""

    @field_validator("datasets", mode="before")
    @classmethod
    def _named(cls, datasets: Any) -> Any:
        if not isinstance(datasets, list):
            return datasets
        return [
            {"dataset": dataset} if isinstance(dataset, str) else dataset for dataset in datasets
        ]

    @model_validator(mode="after")
    def _patience(self) -> "Validation":
        refuse_if(
            self.patience is not None and not (self.share or self.datasets),
            f"patience {self.patience} counts validations, and with share 0 and no datasets there "
            "are none: set one of the two, or leave patience out",
        )
        return self
