"""Copies of the policy that the objective compares with, and how they follow the policy."""

from typing import Annotated, Literal

from pydantic import Field

from services.contracts.config.base import Section


class LaggedProximal(Section):
    """π_prox = a copy of the policy, refreshed every `every` steps (minimind). Has no w: it does
    not correct for the sampler."""

    type: Literal["lagged"]
    every: int = Field(4, ge=1)
    """Steps between refreshes."""


class FrozenReference(Section):
    """The model that the run started from."""

    type: Literal["frozen"] = "frozen"


class EMAReference(Section):
    """After each step, reference + rate · (policy − reference), weight by weight (AReaL)."""

    type: Literal["ema"]
    rate: float = Field(gt=0, le=1)
    """Share of the difference that is added. AReaL calls it `ref_ema_eta`."""


class RefreshReference(Section):
    """A copy of the policy, refreshed every `every` steps."""

    type: Literal["refresh"]
    every: int = Field(ge=1)
    """Steps between refreshes."""


Reference = Annotated[
    FrozenReference | EMAReference | RefreshReference, Field(discriminator="type")
]
