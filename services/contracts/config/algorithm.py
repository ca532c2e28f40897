"""The objective, composed: estimator × loss × aggregation × proximal × correction × KL.

Names and formulas are those of docs/algorithms.md. Each union lists what exists; a member's
`type` names the pure function in `learner` that computes it.
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from services.contracts.config.base import Section

# --- advantages -------------------------------------------------------------------------------


class GroupMean(Section):
    """r − mean of the group."""

    type: Literal["group_mean"]


class GroupZScore(Section):
    """(r − mean) / (std + 1e-6) within the group (GRPO)."""

    type: Literal["group_zscore"] = "group_zscore"


class LeaveOneOut(Section):
    """r − mean of the other samples of the group (RLOO)."""

    type: Literal["leave_one_out"]


Advantage = Annotated[GroupMean | GroupZScore | LeaveOneOut, Field(discriminator="type")]

# --- policy losses ----------------------------------------------------------------------------


class PPOLoss(Section):
    """Clipped ratio (PPO); `dual_clip` bounds the loss for negative advantages."""

    type: Literal["ppo"] = "ppo"
    epsilon_low: float = Field(0.2, gt=0, le=1)
    """The ratio counts down to 1 − epsilon_low."""
    epsilon_high: float = Field(0.2, gt=0)
    """The ratio counts up to 1 + epsilon_high."""
    dual_clip: float | None = Field(None, gt=1)
    """For A < 0 the loss is at most −dual_clip · A."""


class ReinforceLoss(Section):
    """−A·log π, no ratio; a correction weighs it by sg(π)/μ."""

    type: Literal["reinforce"]


class CISPOLoss(Section):
    """−sg(clipped ratio)·A·log π (MiniMax-M1)."""

    type: Literal["cispo"]
    epsilon_low: float = Field(1.0, gt=0, le=1)
    """Lower clip of the weight; 1 means none."""
    epsilon_high: float = Field(0.28, gt=0)
    """Upper clip of the weight."""


class GSPOLoss(Section):
    """PPO on the sequence's geometric mean ratio (GSPO)."""

    type: Literal["gspo"]
    epsilon_low: float = Field(3e-4, gt=0, le=1)
    """Lower clip of the sequence ratio."""
    epsilon_high: float = Field(4e-4, gt=0)
    """Upper clip of the sequence ratio."""


Loss = Annotated[PPOLoss | ReinforceLoss | CISPOLoss | GSPOLoss, Field(discriminator="type")]

# --- aggregation ------------------------------------------------------------------------------


class TokenMean(Section):
    """Sum over tokens / number of tokens in the global batch (DAPO)."""

    type: Literal["token_mean"] = "token_mean"


class SequenceMean(Section):
    """Mean over sequences of their token means (GRPO)."""

    type: Literal["sequence_mean"]


class PromptMean(Section):
    """Mean over prompts of their token means."""

    type: Literal["prompt_mean"]


class ConstantLength(Section):
    """Sum / (sequences · max_tokens) (Dr. GRPO)."""

    type: Literal["constant"]


Aggregation = Annotated[
    TokenMean | SequenceMean | PromptMean | ConstantLength, Field(discriminator="type")
]

# --- off-policy -------------------------------------------------------------------------------


class SamplerProximal(Section):
    """The proximal policy is the sampler itself: no extra forward pass."""

    type: Literal["sampler"] = "sampler"


class RecomputeProximal(Section):
    """Recomputed at the start of each batch (decoupled PPO, AReaL)."""

    type: Literal["recompute"]


Proximal = Annotated[SamplerProximal | RecomputeProximal, Field(discriminator="type")]


class NoCorrection(Section):
    """The loss is used as it is."""

    type: Literal["none"] = "none"


class TruncateCorrection(Section):
    """Weight min(w, cap) on each token's loss (truncated importance sampling)."""

    type: Literal["truncate"]
    cap: float = Field(2.0, gt=0)
    """Largest weight."""
    level: Literal["token", "sequence"] = "token"
    """One weight per token, or the geometric mean per sequence."""


class MaskCorrection(Section):
    """Weight w where low ≤ w ≤ high, else 0 (IcePop)."""

    type: Literal["mask"]
    low: float = Field(0.5, ge=0)
    """Tokens with a smaller weight are left out."""
    high: float = Field(5.0, gt=0)
    """Tokens with a larger weight are left out."""
    level: Literal["token", "sequence"] = "token"
    """One weight per token, or the geometric mean per sequence."""

    @model_validator(mode="after")
    def _bounds(self) -> "MaskCorrection":
        """`low` above `high`: it would leave out every token."""
        if self.low >= self.high:
            raise ValueError(
                f"low {self.low} is not below high {self.high}: every token would be left out"
            )
        return self


Correction = Annotated[
    NoCorrection | TruncateCorrection | MaskCorrection, Field(discriminator="type")
]

# --- KL ---------------------------------------------------------------------------------------


class NoKL(Section):
    """No reference model is loaded."""

    type: Literal["none"] = "none"


class ReferenceKL(Section):
    """KL to the model the run started from, in the loss, with weight `beta`."""

    type: Literal["k1", "k2", "k3"]
    beta: float = Field(0.04, gt=0)
    """Weight of the term."""


KL = Annotated[NoKL | ReferenceKL, Field(discriminator="type")]


class Algorithm(Section):
    """One objective. Batch sizes count prompts: a step trains
    `prompts_per_step · samples_per_prompt` trajectories."""

    prompts_per_step: int = Field(32, ge=1)
    """Groups per batch (B)."""
    samples_per_prompt: int = Field(8, ge=1)
    """Completions per group."""
    minibatches: int = Field(1, ge=1)
    """Optimizer steps each batch is cut into."""
    epochs_per_batch: int = Field(1, ge=1)
    """Passes over each batch."""
    advantage: Advantage = GroupZScore()
    """Advantage estimator."""
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
    max_reward_clip: float | None = Field(None, gt=0)
    """Rewards are clipped to ± this before advantages."""
    mask_too_long: bool = False
    """Leave completions that hit `sampling.max_tokens` or `rollout.straggler_deadline` out of the
    loss."""

    @model_validator(mode="after")
    def _combinations(self) -> "Algorithm":
        """More minibatches than prompts per step; fewer than 2 samples per prompt; correction
        `truncate` with proximal `sampler` and a loss other than `reinforce` (its weight would
        always be 1)."""
        if self.minibatches > self.prompts_per_step:
            raise ValueError(
                f"minibatches {self.minibatches} exceeds prompts_per_step {self.prompts_per_step}: "
                "a minibatch needs at least one prompt"
            )
        if self.samples_per_prompt < 2:
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
        return self
