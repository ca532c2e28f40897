"""The objective, composed: shaping × estimator × loss × aggregation × proximal × correction × KL.

The terms are in `terms`; here is how they fit together. Combinations that cannot work are refused,
those that are probably not meant are named by `Algorithm.warnings`.
"""

from typing import Self

from pydantic import Field, model_validator

from services.contracts.config.base import Section
from services.contracts.config.copies import LaggedProximal
from services.contracts.config.critic import Critic
from services.contracts.config.router import Router
from services.contracts.config.selection import BestOf, DynamicSampling
from services.contracts.config.shaping import Shaping
from services.contracts.config.terms import (
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
    RewardKL,
    SamplerProximal,
    SequenceMean,
    SequencePPOLoss,
    SequenceValue,
    TokenMean,
    TruncateCorrection,
)


class Algorithm(Section):
    """One objective. Batch sizes count prompts: a step trains
    `prompts_per_step · samples_per_prompt` trajectories."""

    prompts_per_step: int = Field(32, ge=1)
    """Groups per batch (B)."""
    samples_per_prompt: int = Field(8, ge=1)
    """Completions per group."""
    dynamic_sampling: DynamicSampling | None = None
    """Groups whose trained samples all have the same reward, before shaping, teach nothing: where
    this is set, their draws end as `no_signal`, and other prompts are drawn in their place (DAPO).
    `{}` is enough."""
    best_of: BestOf | None = None
    """Sample more completions of a prompt than are trained, and choose by their rewards, before
    shaping; of equal ones the longer counts as the better (AReaL)."""
    minibatches: int = Field(1, ge=1)
    """Optimizer steps each batch is cut into."""
    epochs_per_batch: int = Field(1, ge=1)
    """Passes over each batch."""
    shaping: Shaping = Shaping()
    """What becomes of a reward before advantages."""
    advantage: Advantage = GroupZScore()
    """Advantage estimator."""
    critic: Critic | None = None
    """The critic, which advantages `gae` and `sequence_value` need."""
    loss: Loss = PPOLoss()
    """Policy loss."""
    aggregation: Aggregation = TokenMean()
    """How token losses become one number."""
    proximal: Proximal = SamplerProximal()
    """What the ratio is taken against."""
    correction: Correction = NoCorrection()
    """Off-policy correction between sampler and proximal policy."""
    kl: KL = NoKL()
    """Pull towards the reference model."""
    entropy_bonus: float = Field(0.0, ge=0)
    """Weight c of −c·entropy in each token's loss."""
    router: Router = Router()
    """Routers of a mixture-of-experts model."""
    early_stop_ratio: float | None = Field(None, gt=1)
    """Drop the rest of a batch's updates, this one included, where the mean ratio over a minibatch
    is larger."""
    early_stop_kl: float | None = Field(None, gt=0)
    """The same, where the mean of k3 of KL(π_prox ‖ π) is larger, in nats per token."""

    @model_validator(mode="after")
    def _combinations(self) -> Self:
        """More minibatches than prompts per step; fewer than 2 samples per prompt with an advantage
        that compares them; a loss other than `reinforce` with correction `truncate` and proximal
        `sampler` or with correction `truncate` or `mask` and proximal `lagged` (their weight would
        always be 1); loss `dppo` with a correction; kl `k1_in_reward`
        with an advantage other than `global_whiten` and `gae`; chunks of `prompt_mean` larger than
        a group; an `adaptive` KL whose horizon is no more than a fifth of a batch's samples;
        `dynamic_sampling` with one sample per prompt; `best_of` that samples no more than it
        keeps."""
        if self.minibatches > self.prompts_per_step:
            raise ValueError(
                f"minibatches {self.minibatches} exceeds prompts_per_step {self.prompts_per_step}: "
                "a minibatch needs at least one prompt"
            )
        alone = isinstance(self.advantage, GAE | SequenceValue) or (
            isinstance(self.advantage, GlobalWhiten) and not self.advantage.baseline
        )
        if self.samples_per_prompt < 2 and not alone:
            raise ValueError(
                f"advantage {self.advantage.type} compares samples of one prompt: set "
                "samples_per_prompt to 2 or more"
            )
        if (
            isinstance(self.correction, TruncateCorrection)
            and isinstance(self.proximal, SamplerProximal)
            # reinforce has no ratio: its correction weighs by all of π/μ, whatever is proximal.
            and not isinstance(self.loss, ReinforceLoss)
        ):
            raise ValueError(
                f"correction truncate does nothing with proximal sampler and loss {self.loss.type} "
                "(its weight is always 1): set proximal.type to recompute, or correction.type to "
                "none"
            )
        if (
            isinstance(self.correction, TruncateCorrection | MaskCorrection)
            and isinstance(self.proximal, LaggedProximal)
            and not isinstance(self.loss, ReinforceLoss)
        ):
            raise ValueError(
                f"correction {self.correction.type} looks at w, which proximal lagged does not "
                "have: set correction.type to none, or proximal.type to recompute"
            )
        if isinstance(self.loss, DPPOLoss) and not isinstance(self.correction, NoCorrection):
            raise ValueError(
                f"loss dppo is taken against the sampler, so correction {self.correction.type} "
                "would count the same ratio twice: set correction.type to none"
            )
        if isinstance(self.kl, RewardKL) and not isinstance(self.advantage, GlobalWhiten | GAE):
            raise ValueError(
                f"kl k1_in_reward gives each token a reward, of which advantage "
                f"{self.advantage.type} knows nothing: set advantage.type to global_whiten or "
                "gae, or kl.type to k2 or k3, which go into the loss"
            )
        samples = self.prompts_per_step * self.samples_per_prompt
        adaptive = None if isinstance(self.kl, NoKL) else self.kl.adaptive
        if adaptive is not None and adaptive.horizon <= 0.2 * samples:
            raise ValueError(
                f"kl.adaptive.horizon {adaptive.horizon:g} is no more than a fifth of the "
                f"{samples} samples of a batch, so one batch could make beta zero: raise it"
            )
        chunk = self.aggregation.chunk if isinstance(self.aggregation, PromptMean) else None
        if chunk is not None and chunk > self.samples_per_prompt:
            raise ValueError(
                f"aggregation.chunk {chunk} exceeds samples_per_prompt {self.samples_per_prompt}: "
                "lower it, or leave it out to average whole groups"
            )
        if self.dynamic_sampling is not None and self.samples_per_prompt < 2:
            raise ValueError(
                "dynamic_sampling leaves out groups whose rewards are all equal, which a group of "
                "one always is: set samples_per_prompt to 2 or more, or leave dynamic_sampling out"
            )
        if self.best_of is not None and self.best_of.generation_size <= self.samples_per_prompt:
            raise ValueError(
                f"best_of.generation_size {self.best_of.generation_size} is not above "
                f"samples_per_prompt {self.samples_per_prompt}, so nothing is chosen: raise it, or "
                "leave best_of out"
            )
        return self

    @property
    def samples_generated(self) -> int:
        """Completions sampled of each prompt."""
        return self.best_of.generation_size if self.best_of else self.samples_per_prompt

    @model_validator(mode="after")
    def _critic(self) -> Self:
        """Advantages `gae` and `sequence_value` without a `critic`; others with one."""
        valued = isinstance(self.advantage, GAE | SequenceValue)
        if valued and self.critic is None:
            raise ValueError(
                f"advantage {self.advantage.type} needs a critic: add `critic: {{}}` for one that "
                "starts from the policy's model, or set advantage.type to group_zscore"
            )
        if not valued and self.critic is not None:
            raise ValueError(
                f"advantage {self.advantage.type} has no use for a critic: leave critic out, or "
                "set advantage.type to gae"
            )
        return self

    def warnings(self) -> list[tuple[str, str]]:
        """What is allowed and probably not meant: (key path below `algorithm`, sentence)."""
        found: list[tuple[str, str]] = []
        if isinstance(self.kl, ReferenceKL) and self.kl.type == "k1":
            found.append(
                (
                    "kl.type",
                    "the gradient of k1 in the loss is zero in expectation, so it adds noise and "
                    "no pull towards the reference: use k2 or k3+, or k1_in_reward",
                )
            )
        unused = isinstance(self.loss, ReinforceLoss | DPPOLoss) and not isinstance(
            self.kl, RewardKL
        )
        if unused and not isinstance(self.proximal, SamplerProximal):
            found.append(
                (
                    "proximal.type",
                    f"loss {self.loss.type} has no ratio to a proximal policy, which "
                    f"{self.proximal.type} computes: use sampler",
                )
            )
        if isinstance(self.loss, SequencePPOLoss) and not isinstance(
            self.aggregation, SequenceMean
        ):
            found.append(
                (
                    "aggregation.type",
                    "loss sequence_ppo puts the loss of a whole answer on each of its tokens, so "
                    f"that with {self.aggregation.type} a longer answer counts for more: use "
                    "sequence_mean",
                )
            )
        if (
            isinstance(self.advantage, GAE)
            and self.advantage.bootstrap_truncated
            and self.shaping.mask_too_long
        ):
            found.append(
                (
                    "advantage.bootstrap_truncated",
                    "it is about answers that were cut off, and shaping.mask_too_long leaves those "
                    "out of the loss: leave one out",
                )
            )
        alone = isinstance(self.advantage, GlobalWhiten) and not self.advantage.baseline
        if self.dynamic_sampling is not None and alone:
            found.append(
                (
                    "dynamic_sampling",
                    "advantage global_whiten without baseline compares samples of the whole batch, "
                    "so that groups with equal rewards teach something, too, and are left out all "
                    "the same: leave dynamic_sampling out, or set advantage.baseline",
                )
            )
        stops = self.early_stop_ratio is not None or self.early_stop_kl is not None
        single = self.minibatches * self.epochs_per_batch == 1
        if stops and single and isinstance(self.proximal, RecomputeProximal):
            found.append(
                (
                    "early_stop_ratio" if self.early_stop_ratio is not None else "early_stop_kl",
                    "the only update of a batch has ratio 1 with proximal recompute, so nothing "
                    "ever stops: raise minibatches or epochs_per_batch, or leave it out",
                )
            )
        return found
