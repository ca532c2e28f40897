"""The objective, composed: shaping × estimator × loss × aggregation × proximal × correction × KL.

The terms are in `terms`; here is how they fit together. Combinations that cannot work are refused,
those that are probably not meant are named by `Algorithm.warnings`.
"""

from typing import Literal, Self

from pydantic import Field, model_validator

from services.contracts.config.base import Section
from services.contracts.config.critic import Critic
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
    SequenceValue,
    TokenMean,
    TruncateCorrection,
)


class Shaping(Section):
    """What becomes of a sample's reward r before advantages, in the order of these keys."""

    bias: float = 0.0
    """Taken off r."""
    scale: float = 1.0
    """Multiplies r − bias."""
    max_reward_clip: float | None = Field(None, gt=0)
    """(r − bias) · scale is clipped to ± this."""
    penalise_no_eos: bool = False
    """Replace the score of completions without end of sequence by `reward_penalty`."""
    min_response_length: int = Field(0, ge=0)
    """Replace the score of completions with fewer tokens by `reward_penalty`."""
    reward_penalty: float | None = None
    """The score of such completions."""
    mask_no_eos_with_zero: bool = False
    """Replace the score of completions without end of sequence by 0."""
    overlong_buffer: int = Field(0, ge=0)
    """Add min(−(length − (`sampling.max_tokens` − overlong_buffer)) / overlong_buffer ·
    overlong_factor, 0) (DAPO). 0: nothing."""
    overlong_factor: float = Field(1.0, gt=0)
    """What a completion of `sampling.max_tokens` loses by it."""
    mask_too_long: bool = False
    """Leave completions that hit `sampling.max_tokens` or `rollout.straggler_deadline` out of the
    loss. They stay in the statistics of their group."""

    @model_validator(mode="after")
    def _penalties(self) -> Self:
        """A penalty without `reward_penalty`, or that without a penalty; `scale` 0;
        `penalise_no_eos` together with `mask_no_eos_with_zero`, which replace the same score."""
        penalised = self.penalise_no_eos or self.min_response_length > 0
        if penalised and self.reward_penalty is None:
            raise ValueError(
                "penalise_no_eos and min_response_length replace a score by reward_penalty: set "
                "reward_penalty, for example to -1"
            )
        if self.reward_penalty is not None and not penalised:
            raise ValueError(
                f"reward_penalty {self.reward_penalty} is never used: set penalise_no_eos or "
                "min_response_length, or leave it out"
            )
        if self.scale == 0:
            raise ValueError("scale 0 makes every reward 0: nothing could be learned")
        if self.penalise_no_eos and self.mask_no_eos_with_zero:
            raise ValueError(
                "penalise_no_eos and mask_no_eos_with_zero both replace the score of a completion "
                "without end of sequence: set one of them"
            )
        return self


class DynamicSampling(Section):
    """Groups without a signal do not count towards a batch (DAPO): those whose trained samples all
    have the same reward, and those of prompts that are too hard or too easy."""

    low: float | None = None
    """Also leave out prompts that are too hard: the mean reward of what was sampled is below."""
    high: float | None = None
    """Also leave out prompts that are too easy: the mean reward of what was sampled is above."""
    max_left_out: int = Field(10, ge=1)
    """The run fails where more than max_left_out · `prompts_per_step` groups are left out while
    the groups of one batch are collected."""

    @model_validator(mode="after")
    def _range(self) -> Self:
        """`low` that is not below `high`."""
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError(
                f"low {self.low:g} is not below high {self.high:g}: every group would be left out"
            )
        return self


class BestOf(Section):
    """Sample more completions of a prompt than are trained, and choose (AReaL)."""

    generation_size: int = Field(ge=2)
    """Completions sampled of each prompt; `samples_per_prompt` of them are trained."""
    keep: Literal["best", "worst", "both"] = "best"
    """Which; both: half of them the best, half the worst, of an odd number one more of the best."""


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
    early_stop_ratio: float | None = Field(None, gt=1)
    """Drop the rest of a batch's updates, this one included, where the mean ratio over a minibatch
    is larger."""
    early_stop_kl: float | None = Field(None, gt=0)
    """The same, where the mean of k3 of KL(π_prox ‖ π) is larger, in nats per token."""

    @model_validator(mode="after")
    def _combinations(self) -> Self:
        """More minibatches than prompts per step; fewer than 2 samples per prompt with an advantage
        that compares them; correction `truncate` with proximal `sampler` and a loss other than
        `reinforce` (its weight would always be 1); loss `dppo` with a correction; kl `k1_in_reward`
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
