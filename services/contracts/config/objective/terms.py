"""The terms an objective is composed of: each union lists what exists.

Names and formulas are those of docs/algorithms.md. A member's `type` names the pure function in
`learner` that computes it, and its first sentence is the formula.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from services.contracts.config.base import Section
from services.contracts.config.objective.copies import FrozenReference, LaggedProximal, Reference

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


WhitenedOver = Literal["batch", "group"]


class GlobalWhiten(Section):
    """(G − mean G) / (std G + 1e-6) over the tokens of the whole batch, G the discounted return:
    gamma to the number of tokens that follow, times r (REINFORCE++). With rewards for each token it
    is GAE without a critic (AReaL's disable_value)."""

    type: Literal["global_whiten"]
    gamma: float = Field(1.0, gt=0, le=1)
    """Discount per token in the loss."""
    baseline: bool = False
    """Subtract the group's mean from r first (REINFORCE++-baseline)."""
    whiten: WhitenedOver = "batch"
    """The tokens that mean and deviation are of: those of the whole `batch`, or those of the
    samples of each prompt, its `group` (AReaL's group_adv_norm)."""


class RunningMean(Section):
    """r − b, b the running mean of the rewards that the sample's prompt key had in earlier batches;
    for a new key that of all rewards (SPO's value tracker, with a fixed decay). Each reward moves
    b by max(1 / (n + 1), 1 − decay)·(r − b), n the rewards before it."""

    type: Literal["running_mean"]
    decay: float = Field(0.9, ge=0, lt=1)
    """Weight of what b was; lower follows the policy faster, and is noisier."""


def _batch_by_true(value: Any) -> Any:
    return "batch" if value is True else value


class GAE(Section):
    """Σ over the tokens l from t on of (gamma·lambda)^(l−t)·δ_l, δ_t = r_t + gamma·V_{t+1} − V_t
    (generalised advantage estimation). Needs `critic`."""

    type: Literal["gae"]
    gamma: float = Field(1.0, gt=0, le=1)
    """Discount per token in the loss."""
    lambda_: float = Field(0.95, ge=0, le=1, alias="lambda")
    """1: the return minus V, no bias; 0: δ alone, least variance."""
    whiten: Annotated[WhitenedOver | Literal[False], BeforeValidator(_batch_by_true)] = "batch"
    """(A − mean A) / (std A + 1e-6) over the tokens of the whole `batch` (which `true` means), or
    over those of the samples of each prompt, its `group` (AReaL's group_adv_norm); `false`: not."""
    score_at: Literal["last", "end"] = "last"
    """The place that gets r: the `last` token in the loss; or the `end` after the completion's last
    token (torchtune), so that the critic's V there takes part in the advantages and learns r. A
    truncated completion has no end, and its last token gets r."""
    keep_mean: bool = False
    """Add mean A back after whitening (torchtune)."""
    bootstrap_truncated: bool = False
    """After the last token of a truncated completion take the critic's V, not 0."""

    @model_validator(mode="after")
    def _mean(self) -> Self:
        if self.keep_mean and not self.whiten:
            raise ValueError(
                "keep_mean adds back the mean that whiten subtracts: set whiten as well"
            )
        return self


class SequenceValue(Section):
    """r − V at the completion's last token (minimind). Needs `critic`."""

    type: Literal["sequence_value"]


class ReverseKL(Section):
    """log π_teacher − log π_prox of each sampled token: minus the KL of the policy to the teacher,
    in expectation (on-policy distillation; Agarwal et al. 2024). Needs `teacher`, and no reward."""

    type: Literal["reverse_kl"]


Advantage = Annotated[
    GroupMean
    | GroupZScore
    | LeaveOneOut
    | RunningMean
    | GlobalWhiten
    | GAE
    | SequenceValue
    | ReverseKL,
    Field(discriminator="type"),
]

# --- policy losses ----------------------------------------------------------------------------


class PPOLoss(Section):
    """−min(ρA, clip(ρ, 1 − epsilon_low, 1 + epsilon_high)·A) (PPO)."""

    type: Literal["ppo"] = "ppo"
    epsilon_low: float = Field(0.2, gt=0, le=1)
    """The ratio is clipped below at 1 − epsilon_low."""
    epsilon_high: float = Field(0.2, gt=0)
    """The ratio is clipped above at 1 + epsilon_high."""
    dual_clip: float | None = Field(None, gt=1)
    """For A < 0 the loss is at most −dual_clip · A."""


class ReinforceLoss(Section):
    """−A·log π without a ratio; a correction multiplies it by sg(π)/μ."""

    type: Literal["reinforce"]


class CISPOLoss(Section):
    """−sg(clip(ρ, 1 − epsilon_low, 1 + epsilon_high))·A·log π (MiniMax-M1)."""

    type: Literal["cispo"]
    epsilon_low: float = Field(1.0, gt=0, le=1)
    """Lower clip of the weight; 1 means none."""
    epsilon_high: float = Field(0.28, gt=0)
    """Upper clip of the weight."""
    absolute_cap: float | None = Field(None, gt=0)
    """Use min(ρ, absolute_cap) as the weight, and neither epsilon."""


class GSPOLoss(Section):
    """The loss of ppo, with s·π/sg(π) for ρ, s = sg(exp(mean of log ρ over the sequence))
    (GSPO)."""

    type: Literal["gspo"]
    epsilon_low: float = Field(3e-4, gt=0, le=1)
    """Lower clip of the sequence ratio."""
    epsilon_high: float = Field(4e-4, gt=0)
    """Upper clip of the sequence ratio."""


class SequencePPOLoss(Section):
    """The loss of ppo, with exp(Σ log ρ over the sequence) for ρ, on each of its tokens (minimind).
    Made for aggregation `sequence_mean`: others give longer sequences more weight."""

    type: Literal["sequence_ppo"]
    epsilon_low: float = Field(0.1, gt=0, le=1)
    """Lower clip of the sequence ratio."""
    epsilon_high: float = Field(0.1, gt=0)
    """Upper clip of the sequence ratio."""


class DPPOLoss(Section):
    """−keep·A·r + tau·(log r)², r = π/μ; keep is 0 where A > 0 and π − μ > delta, or A < 0 and
    π − μ < −delta, else 1 (DPPO). Takes no correction."""

    type: Literal["dppo"]
    delta: float = Field(0.2, gt=0, lt=1)
    """Largest move of a token's probability in the direction of its advantage."""
    tau: float = Field(1e-3, ge=0)
    """Weight of the pull towards the sampler."""


class SAPOLoss(Section):
    """−(4/τ)·σ(τ(ρ − 1))·A: the gradient fades smoothly as ρ leaves 1 (SAPO)."""

    type: Literal["sapo"]
    tau_positive: float = Field(1.0, gt=0)
    """τ for A > 0."""
    tau_negative: float = Field(1.05, gt=0)
    """τ for A ≤ 0; a larger τ fades faster."""


Loss = Annotated[
    PPOLoss | ReinforceLoss | CISPOLoss | GSPOLoss | SequencePPOLoss | DPPOLoss | SAPOLoss,
    Field(discriminator="type"),
]

# --- aggregation ------------------------------------------------------------------------------


class TokenMean(Section):
    """Sum over tokens / number of tokens in the global batch (DAPO)."""

    type: Literal["token_mean"] = "token_mean"


class SequenceMean(Section):
    """Mean over sequences of their token means (GRPO)."""

    type: Literal["sequence_mean"]


class PromptMean(Section):
    """Mean over prompts of their token means; with `chunk`, over chunks of a prompt's samples."""

    type: Literal["prompt_mean"]
    chunk: int | None = Field(None, ge=1)
    """Samples of a prompt that are averaged together, in sampling order; default: all of them."""


class ConstantLength(Section):
    """Sum / (sequences · max_tokens) (Dr. GRPO); of a mixture, the largest of any dataset."""

    type: Literal["constant"]


Aggregation = Annotated[
    TokenMean | SequenceMean | PromptMean | ConstantLength, Field(discriminator="type")
]

# --- off-policy -------------------------------------------------------------------------------


class SamplerProximal(Section):
    """π_prox = μ, the sampler: no extra forward pass."""

    type: Literal["sampler"] = "sampler"


class RecomputeProximal(Section):
    """π_prox = π at the start of each batch, by one more forward pass (decoupled PPO, AReaL)."""

    type: Literal["recompute"]


class LoglinearProximal(Section):
    """log μ + d/(d + 1)·(sg(log π) − log μ), d versions after the token was sampled: an estimate
    of `recompute` without its forward pass (AReaL)."""

    type: Literal["loglinear"]


Proximal = Annotated[
    SamplerProximal | RecomputeProximal | LoglinearProximal | LaggedProximal,
    Field(discriminator="type"),
]


class NoCorrection(Section):
    """Weight 1."""

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
    """Tokens with a smaller weight get weight 0."""
    high: float = Field(5.0, gt=0)
    """Tokens with a larger weight get weight 0."""
    level: Literal["token", "sequence"] = "token"
    """One weight per token, or the geometric mean per sequence."""

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.low >= self.high:
            raise ValueError(
                f"low {self.low} is not below high {self.high}: every token would get weight 0"
            )
        return self


class OffPolicySequenceMask(Section):
    """Weight 0 for sequences with A < 0 and mean(log μ − log π) > delta, else 1 (DeepSeek-V3.2)."""

    type: Literal["off_policy_sequence_mask"]
    delta: float = Field(0.5, gt=0)
    """How much less likely a bad answer may be for the policy, in nats per token."""


Correction = Annotated[
    NoCorrection | TruncateCorrection | MaskCorrection | OffPolicySequenceMask,
    Field(discriminator="type"),
]

# --- KL ---------------------------------------------------------------------------------------


class AdaptiveBeta(Section):
    """After each batch of n samples, beta grows by the factor 1 + clip(KL / target − 1, −0.2, 0.2)
    · n / horizon (Ziegler et al. 2019)."""

    target: float = Field(6.0, gt=0)
    """The KL that beta steers to, in nats."""
    per: Literal["sample", "token"] = "sample"
    """How that KL is averaged. `sample`: the mean over samples of their summed KL. `token`: the
    mean over all tokens in the loss (AReaL)."""
    horizon: float = Field(10_000, gt=0)
    """Samples until beta has followed; larger is slower."""


class NoKL(Section):
    """No KL term; no reference model is loaded."""

    type: Literal["none"] = "none"


class ReferenceKL(Section):
    """beta · KL to the reference, in the loss; with d = log π − log π_ref: k1 d, k2 d²/2, k3
    e^(−d) + d − 1, k3+ the value of k3 with the gradient of k2."""

    type: Literal["k1", "k2", "k3", "k3+"]
    beta: float = Field(0.04, gt=0)
    """Weight of the term."""
    per: Literal["token", "sample"] = "token"
    """`token`: the term is part of each token's loss, and aggregated with it. `sample`: it is
    summed over each sample, and the mean over samples is added to the loss (minimind)."""
    adaptive: AdaptiveBeta | None = None
    """Adapt `beta` to the KL; default: beta is constant."""
    reference: Reference = FrozenReference()
    """The model π_ref."""


class RewardKL(Section):
    """Adds −beta·(log π_prox − log π_ref) to the reward of each token, fixed during the batch.
    Needs an advantage with rewards per token (`global_whiten`, `gae`)."""

    type: Literal["k1_in_reward"]
    beta: float = Field(0.01, gt=0)
    """Weight of the term."""
    adaptive: AdaptiveBeta | None = None
    """Adapt `beta` to the KL; default: beta is constant."""
    reference: Reference = FrozenReference()
    """The model π_ref."""


KL = Annotated[NoKL | ReferenceKL | RewardKL, Field(discriminator="type")]
