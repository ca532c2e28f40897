"""A run of reinforcement learning, and what kinds of run there are."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from services.contracts.config.base import Section
from services.contracts.config.data import Data, MixedPrompts, PromptDataset
from services.contracts.config.dataset_checks import check_lengths, check_rewards
from services.contracts.config.evaluation import Evaluation
from services.contracts.config.model import PretrainedModel
from services.contracts.config.objective.algorithm import Algorithm
from services.contracts.config.objective.terms import (
    NoCorrection,
    RecomputeProximal,
    ReinforceLoss,
)
from services.contracts.config.optimizer import AdamW, Optimizer, high_rate
from services.contracts.config.placement import Placement
from services.contracts.config.rewards import MOST_REWARDS, RewardComponent, named
from services.contracts.config.rollout import Rollout, Sampling
from services.contracts.config.section_checks import (
    check_adapters,
    check_correction,
    check_evaluation,
    check_format,
    check_in_backward,
    check_limits,
    check_live,
    check_placement,
    check_sessions,
    check_steps,
    check_teacher,
    check_tools,
    check_unrewarded,
)
from services.contracts.config.sft import SFTConfig
from services.contracts.config.tracking import Tracking
from services.contracts.config.training import Schedule, Training
from services.contracts.config.vllm import RECORD_ROUTING, VLLM


class RLConfig(Section):
    """Reinforcement learning of one policy, on one dataset or on several."""

    type: Literal["rl"] = "rl"
    model: PretrainedModel
    """The policy to start from."""
    data: Data
    """The prompts."""
    rewards: list[RewardComponent] = Field(max_length=MOST_REWARDS)
    """Components of the reward, which is their weighted sum. The first one decides whether an
    answer counts as correct. If the submission itself names none, those of its dataset come before
    the recipe's, if the dataset was uploaded with a named mapping; so does `data.template`. The
    list may be empty where agents or an episode of your own say all rewards, and with advantage
    `reverse_kl`, which learns nothing from them."""
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
    tracking: Tracking = Tracking()
    """Experiment trackers that get this run's metrics."""

    @property
    def served(self) -> VLLM:
        """The options to start vLLM with: those of `rollout.vllm`, and those that other sections
        need."""
        options = self.rollout.vllm
        if not self.algorithm.router.replay:
            return options
        return options.model_copy(update={"extra": {**options.extra, RECORD_ROUTING: True}})

    @property
    def components(self) -> dict[str, RewardComponent]:
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
    def order_seed(self) -> int | None:
        """The seed of the rows' order; None: they come in the order of the dataset's file."""
        return None if self.data.order == "file" else self.training.seed

    @property
    def max_tokens(self) -> int:
        """Longest completion of any dataset, in tokens."""
        return max(config.sampling.max_tokens for config in self.datasets.values())

    def _of(self, dataset: PromptDataset) -> "RLConfig":
        if not isinstance(dataset, MixedPrompts):
            return self
        options = {
            key: getattr(dataset, key)
            for key in ("system", "template", "chat_template")
            if getattr(dataset, key) is not None
        }
        changed: dict[str, Any] = {
            "data": self.data.model_copy(update={"dataset": dataset.dataset, **options}),
        }
        if dataset.rewards:
            changed["rewards"] = dataset.rewards
        if dataset.max_tokens is not None:
            changed["sampling"] = self.sampling.model_copy(
                update={"max_tokens": dataset.max_tokens}
            )
        if dataset.episode is not None:
            changed["rollout"] = self.rollout.model_copy(update={"episode": dataset.episode})
        return self.model_copy(update=changed)

    def warnings(self) -> list[str]:
        """Settings that are allowed but probably a mistake, each with its key."""
        critic = self.algorithm.critic
        by_section = {
            "algorithm": [*self.algorithm.warnings(), *self._uncorrected()],
            "algorithm.critic.optimizer": high_rate(critic.optimizer) if critic else [],
            "optimizer": high_rate(self.optimizer, self.model.path),
            "sampling": self.sampling.warnings(),
            "rollout": self._short_lived(),
        }
        return [
            f"{section}.{key}: {sentence}"
            for section, pairs in by_section.items()
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
        recomputes = isinstance(algorithm.proximal, RecomputeProximal)
        if (
            quantization
            and isinstance(algorithm.correction, NoCorrection)
            and (recomputes or isinstance(algorithm.loss, ReinforceLoss))
        ):
            yield (
                "correction.type",
                f"rollout.vllm.quantization {quantization} samples from another policy than the "
                "one that is trained, and nothing corrects for it: set it to truncate",
            )

    @model_validator(mode="after")
    def _sections(self) -> "RLConfig":
        algorithm, training, rollout = self.algorithm, self.training, self.rollout
        if self.data.live:
            check_live(rollout, algorithm, training, self.rewards, self.evaluation)
        check_adapters(self.model, self.optimizer, algorithm, self.placement, training)
        check_evaluation(self.evaluation, rollout)
        check_placement(self.placement, algorithm, training)
        check_in_backward(self.optimizer, algorithm, training, rollout)
        for name, config in self.datasets.items():
            try:
                check_rewards(config.rewards, algorithm, config.rollout.episode)
                check_lengths(config.sampling.max_tokens, algorithm, rollout.vllm.max_model_len)
            except ValueError as error:
                where = f"dataset {name} of data.mix: " if name else ""
                raise ValueError(f"{where}{error}") from None
        for config in self.datasets.values():
            check_teacher(algorithm, config.sampling)
        if not self.rewards:
            episodes = [config.rollout.episode for config in self.datasets.values()]
            check_unrewarded(self.data, algorithm, self.evaluation, episodes)
        check_limits(algorithm, rollout, training)
        check_sessions(self.data, self.sampling, rollout, algorithm, self.rewards, self.evaluation)
        for config in self.datasets.values():
            check_tools(config.data, config.sampling, config.rollout)
            check_format(config.sampling, config.rollout)
        check_steps(training, self.evaluation)
        check_correction(algorithm, rollout)
        return self


RunConfig = Annotated[RLConfig | SFTConfig, Field(discriminator="type")]
