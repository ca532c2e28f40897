"""The critic: a model of the return that is trained beside the policy."""

from typing import Annotated, Literal

from pydantic import Field

from services.contracts.config.base import Section
from services.contracts.config.optimizer import AdamW, Optimizer


class SquaredValueLoss(Section):
    """½·max((V − R)², (clip(V, V_old − clip_range, V_old + clip_range) − R)²)."""

    type: Literal["mse"] = "mse"
    clip_range: float | None = Field(0.2, gt=0)
    """How far V counts from what it was before the batch's updates; null: as far as it goes."""


class HuberValueLoss(Section):
    """As mse, with delta·(|d| − delta/2) in place of ½d² for distances d beyond delta."""

    type: Literal["huber"]
    delta: float = Field(10.0, gt=0)
    """Where the loss goes on in a straight line."""
    clip_range: float | None = Field(0.2, gt=0)
    """How far V counts from what it was before the batch's updates; null: as far as it goes."""


ValueLoss = Annotated[SquaredValueLoss | HuberValueLoss, Field(discriminator="type")]


class ExponentialNormalisation(Section):
    """Mean and deviation of returns so far, each batch counting `beta` times as much as the one
    after it."""

    type: Literal["exponential"] = "exponential"
    beta: float = Field(0.99995, gt=0, lt=1)
    """How slowly batches are forgotten."""
    eps: float = Field(1e-5, gt=0)
    """Least variance."""


class AverageNormalisation(Section):
    """Mean and deviation of all returns so far."""

    type: Literal["average"]
    eps: float = Field(1e-5, gt=0)
    """Least variance."""


Normalisation = Annotated[
    ExponentialNormalisation | AverageNormalisation, Field(discriminator="type")
]


class Critic(Section):
    """A value head on a model of its own, trained in the policy's minibatches and epochs."""

    path: str | None = Field(None, min_length=1)
    """What it starts from: a folder, a hub name, or `run:RUN`, with the policy's tokenizer; a
    reward model brings its head along. Default: what the policy started from. A new head says 0."""
    optimizer: Optimizer = AdamW()
    """Its optimizer; the learning rate follows the run's `schedule`."""
    loss: ValueLoss = SquaredValueLoss()
    """Value loss, a mean over the values of a minibatch."""
    loss_weight: float = Field(1.0, gt=0)
    """Multiplies the value loss. Adam does not see it, but `max_grad_norm` does."""
    warmup_steps: int = Field(0, ge=0)
    """First steps of the run that train the critic alone."""
    normalisation: Normalisation | None = None
    """Have the critic learn returns in units of their mean and deviation. Default: as they are."""
