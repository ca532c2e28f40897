"""The objective, composed: shaping × estimator × loss × aggregation × proximal × correction × KL.

`terms` has the terms. Combinations that cannot work are refused; `Algorithm.warnings` names those
that are probably a mistake.
"""

from collections.abc import Iterator
from typing import Self

from pydantic import Field, model_validator

from services.contracts.config.base import Section, refuse_if
from services.contracts.config.objective.copies import LaggedProximal
from services.contracts.config.objective.critic import Critic
from services.contracts.config.objective.selection import BestOf, DynamicSampling
from services.contracts.config.objective.shaping import Shaping
from services.contracts.config.objective.teacher import Teacher
from services.contracts.config.objective.terms import (
    GAE,
    KL,
    Advantage,
    Aggregation,
    Correction,
    DPPOLoss,
    GlobalWhiten,
    GroupZScore,
    Loss,
    MaskCorrection,
    NoCorrection,
    NoKL,
    PPOLoss,
    PromptMean,
    Proximal,
    RecomputeProximal,
    ReferenceKL,
    ReinforceLoss,
    ReverseKL,
    RewardKL,
    RunningMean,
    SamplerProximal,
    SequenceMean,
    SequencePPOLoss,
    SequenceValue,
    TokenMean,
    TruncateCorrection,
)
from services.contracts.config.router import Router


class Algorithm(Section):
    """One objective. Batch sizes count prompts: a step trains
    `prompts_per_step · samples_per_prompt` trajectories."""

    prompts_per_step: int = Field(32, ge=1)
    """Groups per batch (B)."""
    samples_per_prompt: int = Field(8, ge=1)
    """Completions per group."""
    dynamic_sampling: DynamicSampling | None = None
    """Filter groups whose trained samples all have the same reward, before shaping: their tasks end
    as `filtered_group`, and other prompts take their place (DAPO). `{}` is enough."""
    best_of: BestOf | None = None
    """Sample more completions of a prompt than are trained, and choose by their rewards, before
    shaping; of equal rewards the longer completion wins (AReaL)."""
    minibatches: int = Field(1, ge=1)
    """Optimizer steps per pass over a batch."""
    epochs_per_batch: int = Field(1, ge=1)
    """Passes over each batch."""
    shaping: Shaping = Shaping()
    """Changes of a reward before advantages."""
    advantage: Advantage = GroupZScore()
    """Advantage estimator."""
    critic: Critic | None = None
    """The critic, which advantages `gae` and `sequence_value` need."""
    teacher: Teacher | None = None
    """The teacher, which advantage `reverse_kl` needs."""
    loss: Loss = PPOLoss()
    """Policy loss."""
    aggregation: Aggregation = TokenMean()
    """How token losses become one number."""
    proximal: Proximal = SamplerProximal()
    """The policy that the ratio is taken against."""
    correction: Correction = NoCorrection()
    """Off-policy correction between sampler and proximal policy."""
    kl: KL = NoKL()
    """Penalty for the distance to a reference model."""
    entropy_bonus: float = Field(0.0, ge=0)
    """Weight c of −c·entropy in each token's loss."""
    router: Router = Router()
    """Routers of a mixture-of-experts model."""
    early_stop_ratio: float | None = Field(None, gt=1)
    """Skip the rest of a batch's updates, this one included, if the mean ratio over a minibatch
    exceeds this."""
    early_stop_kl: float | None = Field(None, gt=0)
    """The same for the mean k3 of KL(π_prox ‖ π), in nats per token."""

    @property
    def loads_teacher(self) -> bool:
        """Whether the learner loads a teacher; another one is a server."""
        return self.teacher is not None and self.teacher.path is not None

    @property
    def whitens_groups(self) -> bool:
        """Whether advantages are whitened over the tokens of each group."""
        advantage = self.advantage
        return isinstance(advantage, GlobalWhiten | GAE) and advantage.whiten == "group"

    @property
    def samples_generated(self) -> int:
        """Completions sampled of each prompt."""
        return self.best_of.generation_size if self.best_of else self.samples_per_prompt

    @model_validator(mode="after")
    def _sizes(self) -> Self:
        prompts, samples = self.prompts_per_step, self.samples_per_prompt
        refuse_if(
            self.minibatches > prompts,
            f"minibatches {self.minibatches} exceeds prompts_per_step {prompts}: a minibatch needs "
            "at least one prompt",
        )
        refuse_if(
            samples < 2 and self.whitens_groups,
            f"advantage {self.advantage.type} with whiten group compares samples of one prompt: "
            "set samples_per_prompt to 2 or more, or advantage.whiten to batch",
        )
        alone = isinstance(self.advantage, RunningMean | GAE | SequenceValue | ReverseKL) or (
            isinstance(self.advantage, GlobalWhiten) and not self.advantage.baseline
        )
        refuse_if(
            samples < 2 and not alone,
            f"advantage {self.advantage.type} compares samples of one prompt: set "
            "samples_per_prompt to 2 or more, or advantage.type to running_mean",
        )
        refuse_if(
            samples < 2 and self.dynamic_sampling is not None,
            "dynamic_sampling filters groups whose rewards are all equal, as they always are in a "
            "group of one: set samples_per_prompt to 2 or more, or leave dynamic_sampling out",
        )
        adaptive = None if isinstance(self.kl, NoKL) else self.kl.adaptive
        horizon = adaptive.horizon if adaptive else None
        refuse_if(
            horizon is not None and horizon <= 0.2 * prompts * samples,
            f"kl.adaptive.horizon {horizon or 0:g} is no more than a fifth of the "
            f"{prompts * samples} samples of a batch, so one batch could make beta zero: raise it",
        )
        chunk = self.aggregation.chunk if isinstance(self.aggregation, PromptMean) else None
        refuse_if(
            chunk is not None and chunk > samples,
            f"aggregation.chunk {chunk} exceeds samples_per_prompt {samples}: lower it, or leave "
            "it out to average whole groups",
        )
        refuse_if(
            self.best_of is not None and self.samples_generated <= samples,
            f"best_of.generation_size {self.samples_generated} is not above samples_per_prompt "
            f"{samples}, so nothing is chosen: raise it, or leave best_of out",
        )
        return self

    @model_validator(mode="after")
    def _terms(self) -> Self:
        correction, advantage = self.correction, self.advantage
        # reinforce has no ratio: its correction is all of π/μ, whatever is proximal.
        ratio = not isinstance(self.loss, ReinforceLoss)
        truncates = isinstance(correction, TruncateCorrection)
        refuse_if(
            isinstance(self.loss, DPPOLoss) and not isinstance(correction, NoCorrection),
            f"loss dppo is taken against the sampler, so correction {correction.type} would count "
            "the same ratio twice: set correction.type to none",
        )
        refuse_if(
            truncates and isinstance(self.proximal, SamplerProximal) and ratio,
            f"correction truncate does nothing with proximal sampler and loss {self.loss.type} "
            "(its weight is always 1): set proximal.type to recompute, or correction.type to none",
        )
        refuse_if(
            (truncates or isinstance(correction, MaskCorrection))
            and isinstance(self.proximal, LaggedProximal)
            and ratio,
            f"correction {correction.type} uses w, which proximal lagged does not have: set "
            "correction.type to none, or proximal.type to recompute",
        )
        refuse_if(
            isinstance(self.kl, RewardKL) and not isinstance(advantage, GlobalWhiten | GAE),
            f"kl k1_in_reward gives each token a reward, and advantage {advantage.type} takes one "
            "reward per sample: set advantage.type to global_whiten (which takes no critic) or gae "
            "(which needs one), or kl.type to k2 or k3, which go into the loss",
        )
        taught = isinstance(advantage, ReverseKL)
        refuse_if(
            taught and self.teacher is None,
            "advantage reverse_kl needs a teacher: set teacher.path to a model, or "
            "teacher.endpoint to a vLLM server",
        )
        refuse_if(
            not taught and self.teacher is not None,
            f"advantage {advantage.type} has no use for a teacher: set advantage.type to "
            "reverse_kl, or leave teacher out",
        )
        for name in ("dynamic_sampling", "best_of"):
            refuse_if(
                taught and getattr(self, name) is not None,
                f"{name} chooses by rewards, which advantage reverse_kl does not learn from: leave "
                "it out",
            )
        valued = isinstance(advantage, GAE | SequenceValue)
        refuse_if(
            valued and self.critic is None,
            f"advantage {advantage.type} needs a critic: add `critic: {{}}` for one that starts "
            "from the policy's model, or set advantage.type to group_zscore",
        )
        refuse_if(
            not valued and self.critic is not None,
            f"advantage {advantage.type} has no use for a critic: leave critic out, or set "
            "advantage.type to gae",
        )
        return self

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Settings that are allowed but probably a mistake: (key below `algorithm`, sentence)."""
        if isinstance(self.kl, ReferenceKL) and self.kl.type == "k1":
            yield (
                "kl.type",
                "the gradient of k1 in the loss is zero in expectation, so it adds noise and no "
                "pull towards the reference: use k2 or k3+, or k1_in_reward",
            )
        no_ratio = isinstance(self.loss, ReinforceLoss | DPPOLoss)
        unused = no_ratio and not isinstance(self.kl, RewardKL)
        if unused and not isinstance(self.proximal, SamplerProximal):
            yield (
                "proximal.type",
                f"loss {self.loss.type} has no ratio to a proximal policy, which "
                f"{self.proximal.type} computes: use sampler",
            )
        sequences = isinstance(self.loss, SequencePPOLoss)
        if sequences and not isinstance(self.aggregation, SequenceMean):
            yield (
                "aggregation.type",
                "loss sequence_ppo puts the loss of a whole answer on each of its tokens, so with "
                f"{self.aggregation.type} a longer answer counts for more: use sequence_mean",
            )
        bootstraps = isinstance(self.advantage, GAE) and self.advantage.bootstrap_truncated
        if bootstraps and self.shaping.mask_truncated:
            yield (
                "advantage.bootstrap_truncated",
                "it changes truncated answers only, and shaping.mask_truncated masks those from "
                "the loss: set one of them",
            )
        whole_batch = (
            isinstance(self.advantage, GlobalWhiten)
            and not self.advantage.baseline
            and not self.whitens_groups
        )
        if self.dynamic_sampling is not None and whole_batch:
            yield (
                "dynamic_sampling",
                "advantage global_whiten without baseline compares samples of the whole batch, so "
                "groups with equal rewards have a signal too, and are filtered all the same: leave "
                "dynamic_sampling out, or set advantage.baseline, or advantage.whiten to group",
            )
        if self.dynamic_sampling is not None and isinstance(self.advantage, RunningMean):
            yield (
                "dynamic_sampling",
                "advantage running_mean compares with earlier rewards, so groups with equal "
                "rewards have a signal too, and are filtered all the same: leave dynamic_sampling "
                "out",
            )
        stops = self.early_stop_ratio is not None or self.early_stop_kl is not None
        single = self.minibatches * self.epochs_per_batch == 1
        if stops and single and isinstance(self.proximal, RecomputeProximal):
            yield (
                "early_stop_ratio" if self.early_stop_ratio is not None else "early_stop_kl",
                "the only update of a batch has ratio 1 with proximal recompute, so nothing "
                "ever stops: raise minibatches or epochs_per_batch, or leave it out",
            )
