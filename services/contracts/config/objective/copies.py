"""Copies of the policy that the objective compares with, and how they follow the policy."""

from typing import Annotated, Literal

from pydantic import Field

from services.contracts.config.base import Section


class LaggedProximal(Section):
    """π_prox = a copy of the policy, refreshed every `every` steps (minimind). Without w, the
    sampler's mismatch stays uncorrected."""

    type: Literal["lagged"]
    every: int = Field(4, ge=1)
    """Steps between refreshes."""


class _FromPath(Section):
    path: str | None = Field(None, min_length=1)
    """The model that the reference is at first: a folder, a hub name, or `run:RUN`, with the
    policy's tokenizer; `ema` and `refresh` also need the policy's architecture. Default: the model
    that the run started from."""


class FrozenReference(_FromPath):
    """The model that the run started from, or the one at `path`."""

    type: Literal["frozen"] = "frozen"


class EMAReference(_FromPath):
    """After each step, reference + rate · (policy − reference), weight by weight (AReaL)."""

    type: Literal["ema"]
    rate: float = Field(gt=0, le=1)
    """Share of the difference that is added. AReaL calls it `ref_ema_eta`."""


class RefreshReference(_FromPath):
    """A copy of the policy, refreshed every `every` steps."""

    type: Literal["refresh"]
    every: int = Field(ge=1)
    """Steps between refreshes."""


Reference = Annotated[
    FrozenReference | EMAReference | RefreshReference, Field(discriminator="type")
]
