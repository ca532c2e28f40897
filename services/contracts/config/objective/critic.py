"""The critic: a model of the return, trained together with the policy."""

from typing import Annotated, Literal

from pydantic import Field

from services.contracts.config.base import Section
from services.contracts.config.optimizer import AdamW, Optimizer


class _ClippedValueLoss(Section):
    clip_range: float | None = Field(0.2, gt=0)
    """Largest change of V from its value before the batch's updates; null: no limit."""


class SquaredValueLoss(_ClippedValueLoss):
    """½·max((V − R)², (clip(V, V_old − clip_range, V_old + clip_range) − R)²)."""

    type: Literal["mse"] = "mse"


class HuberValueLoss(_ClippedValueLoss):
    """Like mse, but errors d beyond delta count delta·(|d| − delta/2) instead of ½d²."""

    type: Literal["huber"]
    delta: float = Field(10.0, gt=0)
    """Errors above this count linearly."""


ValueLoss = Annotated[SquaredValueLoss | HuberValueLoss, Field(discriminator="type")]


class _Normalisation(Section):
    eps: float = Field(1e-5, gt=0)
    """Least variance."""
    clip: float | None = Field(None, gt=0)
    """Clip the returns that the critic learns to ± this many deviations from the mean (AReaL: 5).
    It then never learns the full value of a success that is rarer: with rewards of two values, 5
    clips successes below 3.8 %. Default: no clip."""


class ExponentialNormalisation(_Normalisation):
    """Exponential moving mean and deviation of the returns."""

    type: Literal["exponential"] = "exponential"
    beta: float = Field(0.99995, gt=0, lt=1)
    """Decay per batch."""


class AverageNormalisation(_Normalisation):
    """Mean and deviation of all returns so far."""

    type: Literal["average"]


Normalisation = Annotated[
    ExponentialNormalisation | AverageNormalisation, Field(discriminator="type")
]


class Critic(Section):
    """A value head on a second model, trained in the policy's minibatches and epochs."""

    path: str | None = Field(None, min_length=1)
    """The model it starts from: a folder, a hub name, or `run:RUN`, with the policy's tokenizer.
    Default: the model that the policy started from. The head of a reward model is kept; a new head
    returns 0."""
    optimizer: Optimizer = AdamW()
    """Its optimizer; the learning rate follows the run's `schedule`."""
    loss: ValueLoss = SquaredValueLoss()
    """Value loss, the mean over a minibatch's values."""
    loss_weight: float = Field(1.0, gt=0)
    """Multiplies the value loss. It matters for `max_grad_norm`, not for Adam's updates."""
    warmup_steps: int = Field(0, ge=0)
    """Steps at the start of the run that train the critic alone."""
    normalisation: Normalisation | None = None
    """Normalise the returns that the critic learns. Default: no."""
