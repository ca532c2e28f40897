"""The objective of a supervised run: what it learns from its rows."""

from typing import Annotated, Literal

from pydantic import Field

from services.contracts.config.base import Section


class Likelihood(Section):
    """−log π of the tokens that `data.train_on` names, on average."""

    type: Literal["likelihood"] = "likelihood"


class DPO(Section):
    """Direct preference optimisation (Rafailov et al. 2023): of two answers to a prompt, the
    `chosen` one becomes more likely than the `rejected` one. The reference is the model that the
    run starts from. `data.train_on` has no effect: the answers alone are in the loss."""

    type: Literal["dpo"]
    beta: float = Field(0.1, gt=0)
    """How strongly a preference counts against the distance from the reference: the lower, the
    further the policy goes."""
    label_smoothing: float = Field(0.0, ge=0, lt=0.5)
    """Share of the pairs whose preference is taken to be the wrong way round (conservative DPO)."""


SupervisedObjective = Annotated[Likelihood | DPO, Field(discriminator="type")]
