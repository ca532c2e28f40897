"""The two kinds of run and the sections they are made of."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from services.contracts.config.algorithm import Algorithm
from services.contracts.config.base import Section
from services.contracts.config.model import Model, PretrainedModel
from services.contracts.config.optimizer import AdamW, MuonAdamW, Optimizer
from services.contracts.config.rewards import Reward, named
from services.contracts.config.vllm import VLLM


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


class Data(PromptOptions):
    """What the policy is asked."""

    dataset: str = Field(min_length=1)
    """Name or id of an uploaded dataset."""


class Sampling(Section):
    """How rollout workers sample."""

    temperature: float = Field(1.0, gt=0, le=10)
    """Sampling temperature; the learner takes log-probabilities at the same."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus. 1 is off."""
    top_k: int = Field(0, ge=0)
    """Most likely tokens to choose from. 0 is off."""
    max_tokens: int = Field(64, ge=1)
    """Longest completion, in tokens."""
    ignore_eos: bool = False
    """Go on to max_tokens whatever is sampled (benchmarks)."""
    stop_token_ids: list[Annotated[int, Field(ge=0)]] = []
    """Tokens that end a completion besides the tokenizer's end of sequence."""
    seed: int | None = Field(None, ge=0)
    """Where set, sample i of a draw always gets the same seed, so that a synchronous run can be
    repeated. Slower: vLLM then samples row by row."""

    @model_validator(mode="after")
    def _support(self) -> "Sampling":
        """`top_p` other than 1 and `top_k` other than 0, as long as the learner cannot take its
        log-probabilities over the same cut support."""
        if self.top_p != 1 or self.top_k != 0:
            raise ValueError(
                "top_p and top_k cut the support the sampler draws from, and the learner does not "
                "yet take its log-probabilities over the same support, which would bias every "
                "ratio: leave them at 1 and 0"
            )
        return self


class Rollout(Section):
    """How groups are handed out and generated."""

    max_staleness: int = Field(1, ge=0)
    """Versions a sampled token may lag behind the version that trains on it (η). 0: synchronous."""
    lease_seconds: float = Field(60, ge=2)
    """A worker that makes no progress for this long loses its groups to others."""
    update_mode: Literal["keep", "abort", "wait"] = "keep"
    """Requests in flight at a weight update: keep: they go on, with the keys and values they have;
    abort: they are broken off, and continued by the new version from what was sampled; wait: they
    end first, and no new ones begin meanwhile."""
    straggler_deadline: float | None = Field(None, gt=0)
    """Seconds from the lease after which a group that is still generating is cut off. Default:
    never."""
    straggler: Literal["complete", "give_back"] = "complete"
    """A group that is cut off: complete: its samples end where they are, as if at max_tokens;
    give_back: its prompt goes out again, and the third time it is dropped (`too_slow`), as is one
    with a sample that has no token yet."""
    late_groups: Literal["wait", "resample"] = "wait"
    """A group that is not done while a batch is collected after which it would be too stale: wait:
    the learner waits for it; resample: it does not, and the prompt is sampled again. That is faster
    where `max_staleness` is small and few answers are long, and trains less on long ones: the third
    time the prompt is dropped (`too_slow`)."""
    groups_in_flight: int | None = Field(None, ge=1)
    """Groups one worker has vLLM generate at once; default: what fills max_num_seqs and a quarter
    more, which wait there for their turn; groups that wait for their longest answers make room for
    others."""
    episode: str = "single_turn"
    """Episode type, by name."""
    vllm: VLLM = VLLM()
    """Options of the vLLM server."""
    stream_bytes: int = Field(1 << 30, ge=1 << 20)
    """Bytes that finished but untrained groups may take in Redis before workers wait."""


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
    checkpoint_every: int = Field(10, ge=1)
    """Steps between checkpoints. A crash repeats the steps since the last one, from the same
    groups."""
    keep_checkpoints: int = Field(2, ge=1)
    """Newest checkpoints kept on disk."""
    seed: int = Field(0, ge=0)
    """Order of the prompts and everything random in the learner."""

    @model_validator(mode="after")
    def _one_length(self) -> "Training":
        """`max_steps` and `epochs` together."""
        if self.max_steps is not None and self.epochs is not None:
            raise ValueError("training has both max_steps and epochs: leave one out")
        return self


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


class RLConfig(Section):
    """Reinforcement learning of one policy on one dataset."""

    type: Literal["rl"] = "rl"
    model: PretrainedModel
    """The policy to start from."""
    data: Data
    """Prompts."""
    rewards: list[Reward] = Field(min_length=1)
    """Components of the reward, which is their weighted sum. The first one says whether an answer
    counts as correct."""
    sampling: Sampling = Sampling()
    """Sampling options."""
    rollout: Rollout = Rollout()
    """Rollout workers."""
    algorithm: Algorithm = Algorithm()
    """The objective."""
    optimizer: Optimizer = AdamW()
    """The optimizer."""
    schedule: Schedule = Schedule()
    """Learning rate schedule."""
    training: Training = Training()
    """Length, micro-batches, checkpoints."""
    evaluation: Evaluation | None = None
    """Held-out evaluation."""

    @property
    def components(self) -> dict[str, Reward]:
        """The rewards by name, in their order."""
        return named(self.rewards)

    @model_validator(mode="after")
    def _gates(self) -> "RLConfig":
        """Two `rewards` of one name, or an `only_if` that names none that stands before it."""
        before: list[str] = []
        for name, reward in self.components.items():
            gate = reward.only_if
            if gate is not None and gate.component not in before:
                there = f"there is {', '.join(before)}" if before else "it is the first"
                raise ValueError(
                    f"reward {name!r} has only_if.component {gate.component!r}, which is no reward "
                    f"that stands before it; {there}"
                )
            before.append(name)
        return self

    @model_validator(mode="after")
    def _lengths(self) -> "RLConfig":
        """`sampling.max_tokens` that fill `rollout.vllm.max_model_len`, or that
        `algorithm.shaping.overlong_buffer` covers whole; more completions of a prompt
        (`algorithm.samples_per_prompt`, or `algorithm.best_of.generation_size`) than
        `rollout.vllm.max_num_seqs`."""
        limit = self.rollout.vllm.max_model_len
        if limit is not None and self.sampling.max_tokens >= limit:
            raise ValueError(
                f"sampling.max_tokens {self.sampling.max_tokens} leaves no room for a prompt in "
                f"rollout.vllm.max_model_len {limit}"
            )
        buffer = self.algorithm.shaping.overlong_buffer
        if buffer >= self.sampling.max_tokens:
            raise ValueError(
                f"algorithm.shaping.overlong_buffer {buffer} is not below sampling.max_tokens "
                f"{self.sampling.max_tokens}: every answer would be punished for its length"
            )
        samples = self.algorithm.samples_generated
        if samples > self.rollout.vllm.max_num_seqs:
            key = "best_of.generation_size" if self.algorithm.best_of else "samples_per_prompt"
            raise ValueError(
                f"algorithm.{key} {samples} exceeds rollout.vllm.max_num_seqs "
                f"{self.rollout.vllm.max_num_seqs}"
            )
        return self


class MidtrainData(PromptOptions):
    """Rows to imitate: prompt and answer."""

    dataset: str = Field(min_length=1)
    """Name or id of an uploaded dataset whose rows have answers."""
    train_on: Literal["answer", "all"] = "answer"
    """Which tokens the loss counts: the answer and the end of sequence, or all."""


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


class MidtrainConfig(Section):
    """Supervised training of a model, from nothing or from an existing one."""

    type: Literal["midtrain"]
    model: Model
    """The model to train."""
    data: MidtrainData
    """What it learns."""
    optimizer: Optimizer = MuonAdamW(type="muon")
    """The optimizer."""
    schedule: Schedule = Schedule(type="wsd")
    """Learning rate schedule."""
    training: Midtrain = Midtrain()
    """Length and batch."""


RunConfig = Annotated[RLConfig | MidtrainConfig, Field(discriminator="type")]
