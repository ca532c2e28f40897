"""The two kinds of run and the sections they are made of."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from services.contracts.config.algorithm import Algorithm
from services.contracts.config.base import Section
from services.contracts.config.copies import FrozenReference, LaggedProximal
from services.contracts.config.data import Data, MidtrainData
from services.contracts.config.episodes import Calculator
from services.contracts.config.model import Model, PretrainedModel
from services.contracts.config.optimizer import AdamW, MuonAdamW, Optimizer
from services.contracts.config.placement import Placement
from services.contracts.config.rewards import Reward, named
from services.contracts.config.rollout import Rollout, Sampling
from services.contracts.config.router import Balance
from services.contracts.config.terms import (
    GAE,
    GlobalWhiten,
    LoglinearProximal,
    MaskCorrection,
    NoKL,
    ReinforceLoss,
    TruncateCorrection,
)
from services.contracts.config.training import Evaluation, Midtrain, Schedule, Training
from services.contracts.config.vllm import RECORD_ROUTING, VLLM


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
    placement: Placement = Placement()
    """Where reference and critic lie."""
    evaluation: Evaluation | None = None
    """Held-out evaluation."""

    @property
    def served(self) -> VLLM:
        """The options that vLLM is started with: those of `rollout.vllm`, and what other sections
        need of it."""
        options = self.rollout.vllm
        if not self.algorithm.router.replay:
            return options
        return options.model_copy(update={"extra": {**options.extra, RECORD_ROUTING: True}})

    @property
    def components(self) -> dict[str, Reward]:
        """The rewards by name, in their order."""
        return named(self.rewards)

    def warnings(self) -> list[str]:
        """What is allowed and probably not meant: keys, and what is the matter."""
        found = {"algorithm": self.algorithm.warnings(), "sampling": self.sampling.warnings()}
        return [
            f"{section}.{key}: {sentence}"
            for section, pairs in found.items()
            for key, sentence in pairs
        ]

    @model_validator(mode="after")
    def _adapters(self) -> "RLConfig":
        """With `model.lora`: `optimizer.type` muon; `algorithm.proximal.type` lagged; a
        `kl.reference` that moves, or that `placement.reference` puts somewhere else."""
        if self.model.lora is None:
            return self
        if isinstance(self.optimizer, MuonAdamW):
            raise ValueError(
                "optimizer.type muon is made for whole matrices, and model.lora trains two thin "
                "factors of each: use adamw, with about ten times its usual lr"
            )
        if isinstance(self.algorithm.proximal, LaggedProximal):
            raise ValueError(
                "algorithm.proximal.type lagged is a second copy of the whole model, of which "
                "model.lora has one: use sampler or recompute, or leave model.lora out"
            )
        kl = self.algorithm.kl
        if not isinstance(kl, NoKL) and not isinstance(kl.reference, FrozenReference):
            raise ValueError(
                f"algorithm.kl.reference.type {kl.reference.type} moves a second copy of the whole "
                "model; with model.lora the reference is the model without its adapters: leave it "
                "at frozen, or leave model.lora out"
            )
        if self.placement.reference != "same":
            raise ValueError(
                f"placement.reference {self.placement.reference}: with model.lora the reference "
                "is the policy without its adapters, and lies where that does: leave it out"
            )
        return self

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
    def _dense(self) -> "RLConfig":
        """A `dense` reward with an advantage other than `global_whiten` and `gae`, or with
        `rollout.episode` calculator."""
        advantage = self.algorithm.advantage
        for name, reward in self.components.items():
            if reward.dense and not isinstance(advantage, GlobalWhiten | GAE):
                raise ValueError(
                    f"reward {name!r} is dense, and advantage {advantage.type} knows one reward a "
                    "sample: set algorithm.advantage.type to gae or global_whiten, or leave dense "
                    "out"
                )
            if reward.dense and isinstance(self.rollout.episode, Calculator):
                raise ValueError(
                    f"reward {name!r} is dense, and what verifiers read with rollout.episode "
                    "calculator has markers and results in it, so that parts of it cannot be given "
                    "to tokens: leave dense out, or the calculator"
                )
        return self

    @model_validator(mode="after")
    def _lengths(self) -> "RLConfig":
        """`sampling.max_tokens` that fill `rollout.vllm.max_model_len`, that
        `algorithm.shaping.overlong_buffer` covers whole, or that are fewer than
        `algorithm.shaping.min_response_length`; more completions of a prompt
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
        least = self.algorithm.shaping.min_response_length
        if least > self.sampling.max_tokens:
            raise ValueError(
                f"algorithm.shaping.min_response_length {least} exceeds sampling.max_tokens "
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

    @model_validator(mode="after")
    def _policy_trains(self) -> "RLConfig":
        """`algorithm.critic.warmup_steps` that are all of `training.max_steps`."""
        critic, steps = self.algorithm.critic, self.training.max_steps
        if critic is not None and steps is not None and critic.warmup_steps >= steps:
            raise ValueError(
                f"algorithm.critic.warmup_steps {critic.warmup_steps} leaves the policy none of "
                f"training.max_steps {steps}: lower it"
            )
        return self

    @model_validator(mode="after")
    def _behind(self) -> "RLConfig":
        """`algorithm.proximal.type` loglinear with correction `truncate` or `mask`, a loss other
        than `reinforce`, and `rollout.max_staleness` 0 (their weight would always be 1)."""
        algorithm = self.algorithm
        if (
            isinstance(algorithm.proximal, LoglinearProximal)
            and isinstance(algorithm.correction, TruncateCorrection | MaskCorrection)
            and not isinstance(algorithm.loss, ReinforceLoss)
            and self.rollout.max_staleness == 0
        ):
            raise ValueError(
                f"algorithm.correction.type {algorithm.correction.type} does nothing with proximal "
                "loglinear and rollout.max_staleness 0: no token is a version old, so that its "
                "weight is always 1: set algorithm.proximal.type to recompute, or "
                "correction.type to none"
            )
        return self

    @model_validator(mode="after")
    def _placed(self) -> "RLConfig":
        """A `placement` of a model that `algorithm` does not have."""
        there = {
            "reference": (not isinstance(self.algorithm.kl, NoKL), "algorithm.kl"),
            "lagged": (
                isinstance(self.algorithm.proximal, LaggedProximal),
                "algorithm.proximal lagged",
            ),
            "critic": (self.algorithm.critic is not None, "algorithm.critic"),
        }
        for name, (loaded, key) in there.items():
            if getattr(self.placement, name) != "same" and not loaded:
                raise ValueError(
                    f"placement.{name} {getattr(self.placement, name)} places a model that this "
                    f"run does not load: leave it out, or set {key}"
                )
        return self

    @model_validator(mode="after")
    def _in_backward(self) -> "RLConfig":
        """`in_backward` of an optimizer, where a minibatch of the longest sequences
        (`rollout.vllm.max_model_len`) does not fit `training.tokens_per_microbatch`, or, of the
        policy's, where `early_stop_ratio` or `early_stop_kl` could call its update off."""
        critic = self.algorithm.critic
        optimizers: dict[str, Optimizer] = {"optimizer": self.optimizer}
        if critic is not None:
            optimizers["algorithm.critic.optimizer"] = critic.optimizer
        key = next((key for key, one in optimizers.items() if one.in_backward), None)
        if key is None:
            return self
        longest, room = self.rollout.vllm.max_model_len, self.training.tokens_per_microbatch
        if longest is None:
            raise ValueError(
                f"{key}.in_backward needs minibatches that fit one micro-batch, and nothing says "
                "how long a sequence can be: set rollout.vllm.max_model_len"
            )
        prompts = -(-self.algorithm.prompts_per_step // self.algorithm.minibatches)
        samples = prompts * self.algorithm.samples_per_prompt
        if samples * longest > room:
            raise ValueError(
                f"{key}.in_backward has nowhere to add up the gradients of several micro-batches, "
                f"and a minibatch of {samples} sequences of up to {longest} tokens does not fit "
                f"training.tokens_per_microbatch {room}: raise that or algorithm.minibatches, or "
                "leave in_backward out"
            )
        stops = (self.algorithm.early_stop_ratio, self.algorithm.early_stop_kl) != (None, None)
        if self.optimizer.in_backward and stops:
            raise ValueError(
                "optimizer.in_backward makes an update before it is known whether "
                "algorithm.early_stop_ratio or early_stop_kl would call it off: leave one out"
            )
        return self


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
    router: Balance = Balance()
    """Routers of a mixture-of-experts model."""
    training: Midtrain = Midtrain()
    """Length and batch."""

    @model_validator(mode="after")
    def _in_backward(self) -> "MidtrainConfig":
        """`optimizer.in_backward`: gradients of several micro-batches are added up."""
        if self.optimizer.in_backward:
            raise ValueError(
                "optimizer.in_backward has nowhere to add up the gradients of several "
                "micro-batches, which midtraining takes: leave it out"
            )
        return self

    @model_validator(mode="after")
    def _whole(self) -> "MidtrainConfig":
        """`model.lora`."""
        if isinstance(self.model, PretrainedModel) and self.model.lora is not None:
            raise ValueError(
                "model.lora is for runs of type rl: midtraining trains all weights; leave it out"
            )
        return self


RunConfig = Annotated[RLConfig | MidtrainConfig, Field(discriminator="type")]
