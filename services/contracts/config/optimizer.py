"""What turns gradients into updates: of the policy, and of the critic."""

from typing import Annotated, Literal

from pydantic import Field

from services.contracts.config.base import Section


class AdamW(Section):
    """Adam with decoupled weight decay."""

    type: Literal["adamw"] = "adamw"
    lr: float = Field(1e-6, gt=0)
    """Peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of the first and second moments."""
    eps: float = Field(1e-8, gt=0)
    """Added to the denominator."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay."""
    max_grad_norm: float | None = Field(1.0, gt=0)
    """Gradients are scaled down to this global norm; null: never."""


class MuonAdamW(Section):
    """Muon for the matrices inside the blocks, AdamW for embeddings, head and vectors."""

    type: Literal["muon"]
    lr: float = Field(0.02, gt=0)
    """Peak learning rate of the matrices."""
    momentum: float = Field(0.95, ge=0, lt=1)
    """Muon's momentum."""
    adamw_lr: float = Field(3e-3, gt=0)
    """Peak learning rate of everything else."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's betas."""
    eps: float = Field(1e-8, gt=0)
    """AdamW's epsilon."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay of both."""
    max_grad_norm: float | None = Field(1.0, gt=0)
    """Gradients are scaled down to this global norm; null: never."""


Optimizer = Annotated[AdamW | MuonAdamW, Field(discriminator="type")]
