"""A run of reinforcement learning, and what kinds of run there are."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from services.contracts.config.base import Section, refuse_if
from services.contracts.config.data import Data, MixedPrompts, PromptDataset
from services.contracts.config.dataset_checks import check_lengths, check_rewards
from services.contracts.config.episodes import OwnEpisode, Sessions, Tools
from services.contracts.config.evaluation import Evaluation
from services.contracts.config.model import PretrainedModel
from services.contracts.config.objective.algorithm import Algorithm
from services.contracts.config.objective.terms import (
    LoglinearProximal,
    MaskCorrection,
    NoCorrection,
    RecomputeProximal,
    ReinforceLoss,
    ReverseKL,
    TruncateCorrection,
)
from services.contracts.config.optimizer import AdamW, Optimizer
from services.contracts.config.placement import Placement
from services.contracts.config.rewards import Reward, named
from services.contracts.config.rollout import Rollout, Sampling
from services.contracts.config.section_checks import (
    check_adapters,
    check_evaluation,
    check_in_backward,
    check_placement,
)
from services.contracts.config.sft import SFTConfig
from services.contracts.config.training import Schedule, Training
from services.contracts.config.vllm import RECORD_ROUTING, TOOL_PARSER_OPTIONS, VLLM


class RLConfig(Section):
    """Reinforcement learning of one policy, on one dataset or on several."""

    type: Literal["rl"] = "rl"
    model: PretrainedModel
    """The policy to start from."""
    data: Data
    """The prompts."""
    rewards: list[Reward]
    """Components of the reward, which is their weighted sum. The first one decides whether an
    answer counts as correct. Where a submission names none, those of its dataset are taken, if that
    was uploaded with a named mapping; so is `data.template`. The list may be empty where agents or
    an episode of your own say all rewards, and with advantage `reverse_kl`, which learns nothing
    from them."""
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
    """Length, micro-batches and checkpoints."""
    placement: Placement = Placement()
    """Devices of the models besides the policy. `same` is the policy's device. `cuda:N` is another
    one: the first rank of a host puts the model on GPU N and computes it there, the second on GPU
    N + 1, and so on."""
    evaluation: Evaluation | None = None
    """Held-out evaluation."""

    @property
    def served(self) -> VLLM:
        """The options to start vLLM with: those of `rollout.vllm`, and those that other sections
        need."""
        options = self.rollout.vllm
        if not self.algorithm.router.replay:
            return options
        return options.model_copy(update={"extra": {**options.extra, RECORD_ROUTING: True}})

    @property
    def components(self) -> dict[str, Reward]:
        """The rewards by name, in their order."""
        return named(self.rewards)

    @property
    def datasets(self) -> dict[str, "RLConfig"]:
        """The config of each dataset's prompts, by the dataset's name, in their order. One that is
        alone is called '', and has this config."""
        if not self.data.mix:
            return {"": self}
        return dict(zip(self.data.names, map(self._of, self.data.components), strict=True))

    @property
    def max_tokens(self) -> int:
        """Longest completion of any dataset, in tokens."""
        return max(one.sampling.max_tokens for one in self.datasets.values())

    def _of(self, one: PromptDataset) -> "RLConfig":
        if not isinstance(one, MixedPrompts):
            return self
        options = {
            key: getattr(one, key)
            for key in ("system", "template", "chat_template")
            if getattr(one, key) is not None
        }
        changed: dict[str, Any] = {
            "data": self.data.model_copy(update={"dataset": one.dataset, **options}),
        }
        if one.rewards:
            changed["rewards"] = one.rewards
        if one.max_tokens is not None:
            changed["sampling"] = self.sampling.model_copy(update={"max_tokens": one.max_tokens})
        if one.episode is not None:
            changed["rollout"] = self.rollout.model_copy(update={"episode": one.episode})
        return self.model_copy(update=changed)

    def warnings(self) -> list[str]:
        """Settings that are allowed but probably a mistake, each with its key."""
        found = {
            "algorithm": [*self.algorithm.warnings(), *self._uncorrected()],
            "sampling": self.sampling.warnings(),
            "rollout": self._short_lived(),
        }
        return [
            f"{section}.{key}: {sentence}"
            for section, pairs in found.items()
            for key, sentence in pairs
        ]

    def _short_lived(self) -> Iterator[tuple[str, str]]:
        eta = self.rollout.max_staleness
        if self.data.live and eta < 2:
            yield (
                "max_staleness",
                f"{eta}: a session is dropped if more steps were trained between its first answer "
                "and its own step, so rewards that come late are of no use: set it to the steps "
                "that the run makes in that time (the recipe live has 8)",
            )

    def _uncorrected(self) -> Iterator[tuple[str, str]]:
        algorithm, quantization = self.algorithm, self.rollout.vllm.quantization
        # With proximal sampler the ratio of the loss is taken against the sampler itself.
        apart = isinstance(algorithm.proximal, RecomputeProximal)
        if (
            quantization
            and isinstance(algorithm.correction, NoCorrection)
            and (apart or isinstance(algorithm.loss, ReinforceLoss))
        ):
            yield (
                "correction.type",
                f"rollout.vllm.quantization {quantization} samples from another policy than the "
                "one that is trained, and nothing corrects for it: set it to truncate",
            )

    @model_validator(mode="after")
    def _live(self) -> "RLConfig":
        if not self.data.live:
            return self
        refuse_if(
            not isinstance(self.rollout.episode, Sessions),
            "data.source sessions needs rollout.episode: sessions: set it",
        )
        refuse_if(
            self.evaluation is not None,
            "evaluation: with data.source sessions nobody answers held-out rows: leave it out; "
            "`headrace eval` evaluates checkpoints",
        )
        refuse_if(
            bool(self.rewards),
            "rewards: with data.source sessions applications say all rewards: set rewards to []",
        )
        refuse_if(
            self.algorithm.samples_generated != 1,
            f"algorithm.samples_per_prompt {self.algorithm.samples_generated}: with data.source "
            "sessions each session is a group of its own: set it to 1, leave best_of out, and set "
            "advantage.type to running_mean",
        )
        refuse_if(
            self.training.epochs is not None or self.training.max_steps is None,
            "training.epochs counts passes over a dataset, and with data.source sessions there is "
            "none: set training.max_steps instead",
        )
        refuse_if(
            self.training.max_steps == 0,
            "training.max_steps 0 trains nothing: set it to 1 or more",
        )
        return self

    @model_validator(mode="after")
    def _sections(self) -> "RLConfig":
        algorithm, training = self.algorithm, self.training
        check_adapters(self.model, self.optimizer, algorithm, self.placement, training)
        check_evaluation(self.evaluation, self.rollout)
        check_placement(self.placement, algorithm, training)
        check_in_backward(self.optimizer, algorithm, training, self.rollout)
        return self

    @model_validator(mode="after")
    def _datasets(self) -> "RLConfig":
        limit = self.rollout.vllm.max_model_len
        for name, one in self.datasets.items():
            try:
                check_rewards(one.rewards, one.algorithm, one.rollout.episode)
                check_lengths(one.sampling.max_tokens, one.algorithm, limit)
            except ValueError as error:
                where = f"dataset {name} of data.mix: " if name else ""
                raise ValueError(f"{where}{error}") from None
        return self

    @model_validator(mode="after")
    def _taught(self) -> "RLConfig":
        teacher = self.algorithm.teacher
        if teacher is None or teacher.endpoint is None:
            return self
        for one in self.datasets.values():
            refuse_if(
                one.sampling.temperature != 1,
                f"sampling.temperature {one.sampling.temperature:g}: algorithm.teacher.endpoint "
                "scores at temperature 1: set it to 1, or name algorithm.teacher.path",
            )
            refuse_if(
                one.sampling.cuts,
                "sampling.top_k: algorithm.teacher.endpoint scores over the whole vocabulary: "
                "leave top_k and top_p out, or name algorithm.teacher.path",
            )
        return self

    @model_validator(mode="after")
    def _unrewarded(self) -> "RLConfig":
        if self.rewards:
            return self
        given = all(
            isinstance(one.rollout.episode, Sessions | OwnEpisode) for one in self.datasets.values()
        )
        refuse_if(
            not (given or isinstance(self.algorithm.advantage, ReverseKL)),
            f"rewards is empty, and advantage {self.algorithm.advantage.type} learns from them: "
            "name a verifier, or an episode that gives rewards itself",
        )
        evaluated = self.evaluation.sets if self.evaluation else []
        for key, needs in (
            ("evaluation", any(not one.rewards for one in evaluated)),
            ("data.filter", self.data.filter is not None),
        ):
            refuse_if(
                needs,
                f"{key} needs rewards, and there are none: name a verifier, or leave {key} out",
            )
        return self

    @model_validator(mode="after")
    def _lengths(self) -> "RLConfig":
        samples, most = self.algorithm.samples_generated, self.rollout.vllm.max_num_seqs
        key = "best_of.generation_size" if self.algorithm.best_of else "samples_per_prompt"
        refuse_if(
            most is not None and samples > most,
            f"algorithm.{key} {samples} exceeds rollout.vllm.max_num_seqs {most}",
        )
        refuse_if(
            self.rollout.vllm.ngram_tokens > 0 and self.algorithm.router.replay,
            "rollout.vllm.ngram_tokens: expert routing is recorded of sampled tokens, not of "
            "guesses; set it to 0, or algorithm.router.replay to false",
        )
        critic, steps = self.algorithm.critic, self.training.max_steps
        warmup = critic.warmup_steps if critic else 0
        refuse_if(
            bool(steps) and warmup >= (steps or 0),
            f"algorithm.critic.warmup_steps {warmup} leaves the policy none of training.max_steps "
            f"{steps}: lower it",
        )
        return self

    @model_validator(mode="after")
    def _sessions(self) -> "RLConfig":
        episodes = [self.rollout.episode, *(one.episode for one in self.data.mix)]
        refuse_if(
            bool(self.data.mix) and any(isinstance(one, Sessions) for one in episodes),
            "data.mix: agents of rollout.episode sessions take the prompts of one dataset: leave "
            "mix out, or choose another episode for all datasets",
        )
        if not isinstance(self.rollout.episode, Sessions):
            return self
        refuse_if(
            self.data.curriculum is not None,
            "data.curriculum: agents of rollout.episode sessions take prompts in their order: "
            "leave it out",
        )
        refuse_if(
            self.evaluation is not None,
            "evaluation: agents outside answer the prompts of rollout.episode sessions, so workers "
            "have nothing to evaluate: leave it out, and let your agent answer a test set through "
            "/v1/chat/completions with model RUN@latest (docs/agents.md)",
        )
        refuse_if(
            any(reward.dense for reward in self.rewards),
            "rewards: dense rewards belong to parts of one answer, and with rollout.episode "
            "sessions verifiers read the last answer of several: leave dense out",
        )
        refuse_if(
            self.algorithm.router.replay,
            "algorithm.router.replay: expert routing is not recorded in sessions: set it to false",
        )
        refuse_if(
            self.sampling.ignore_eos,
            "sampling.ignore_eos: an answer in a session ends at its end of sequence: leave it out",
        )
        refuse_if(
            self.rollout.straggler_deadline is not None,
            "rollout.straggler_deadline: workers do not hold the groups of rollout.episode "
            "sessions: leave it out; rollout.episode.idle_seconds ends idle sessions",
        )
        return self

    @model_validator(mode="after")
    def _tools(self) -> "RLConfig":
        for one in self.datasets.values():
            if not isinstance(one.rollout.episode, Tools):
                continue
            refuse_if(
                not self.rollout.vllm.parses_tools,
                "rollout.episode tools: this run has no parser for the model's tool calls: set "
                f"{TOOL_PARSER_OPTIONS}",
            )
            refuse_if(
                one.data.chat_template == "none",
                "data.chat_template none: with rollout.episode tools the chat template describes "
                "the tools: leave it at auto",
            )
            refuse_if(
                one.sampling.ignore_eos,
                "sampling.ignore_eos: an answer of rollout.episode tools ends at its end of "
                "sequence: leave it out",
            )
        return self

    @model_validator(mode="after")
    def _trains_nothing(self) -> "RLConfig":
        refuse_if(
            self.training.max_steps == 0 and self.evaluation is None,
            "training.max_steps 0 trains nothing, and there is no evaluation: name its dataset "
            "(evaluation.dataset), or set max_steps to 1 or more",
        )
        return self

    @model_validator(mode="after")
    def _correction(self) -> "RLConfig":
        algorithm = self.algorithm
        refuse_if(
            isinstance(algorithm.proximal, LoglinearProximal)
            and isinstance(algorithm.correction, TruncateCorrection | MaskCorrection)
            and not isinstance(algorithm.loss, ReinforceLoss)
            and self.rollout.max_staleness == 0,
            f"algorithm.correction.type {algorithm.correction.type} does nothing with proximal "
            "loglinear and rollout.max_staleness 0: no token is a version old, so its weight is "
            "always 1: set algorithm.proximal.type to recompute, or correction.type to none",
        )
        return self


RunConfig = Annotated[RLConfig | SFTConfig, Field(discriminator="type")]
