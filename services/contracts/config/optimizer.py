"""Optimizers of the policy and of the critic."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from services.contracts.config.base import Section

Decay = Annotated[float, Field(ge=0, lt=1)]
"""The decay of an average: the share of the old average that an update leaves."""


MOST_FOR_TRAINED = 2e-3
"""Muon's highest learning rate for a model that others have trained."""


class _Options(Section):
    eps: float = Field(1e-8, gt=0)
    """Added to Adam's denominator."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay."""
    max_grad_norm: float | None = Field(1.0, gt=0)
    """Gradients are scaled down to this global norm; null: never."""
    in_backward: bool = False
    """Update each weight in the backward pass, as soon as its gradient is there, and free the
    gradient. For one rank, or training.parallel fsdp, and minibatches of one micro-batch."""

    @model_validator(mode="after")
    def _norm(self) -> Self:
        if self.in_backward and self.max_grad_norm is not None:
            raise ValueError(
                f"max_grad_norm {self.max_grad_norm:g} needs all gradients at once, and "
                "in_backward frees them one by one: set max_grad_norm to null, or in_backward to "
                "false"
            )
        return self


class AdamWOptions(_Options):
    """Options that all kinds of AdamW share."""

    lr: float = Field(1e-6, gt=0)
    """Peak learning rate."""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """Decay of the first and second moments."""


class AdamW(AdamWOptions):
    """Adam with decoupled weight decay."""

    type: Literal["adamw"] = "adamw"


class AdamW8bit(AdamWOptions):
    """AdamW with moments of 8 bits, one scale per block of 256 (Dettmers et al. 2022, as in
    torchao): 2 bytes a weight instead of 8. Weights of fewer than 4,096 entries keep 32 bits."""

    type: Literal["adamw_8bit"]


class MuonAdamW(_Options):
    """Muon for the matrices inside the blocks, AdamW for embeddings, head and vectors."""

    type: Literal["muon"]
    lr: float = Field(0.02, gt=0)
    """Peak learning rate of the matrices."""
    momentum: float = Field(0.95, ge=0, lt=1)
    """Muon's momentum."""
    momentum_start: float | None = Field(None, ge=0, lt=1)
    """Muon's momentum at the first step, from which it rises to `momentum` (nanochat: 0.85);
    default: it is `momentum` from the first step."""
    momentum_warmup_steps: int = Field(300, ge=1)
    """Steps (batches) until it has risen."""
    adamw_lr: float = Field(3e-3, gt=0)
    """Peak learning rate of everything else."""
    embedding_lr: float | None = Field(None, gt=0)
    """Peak learning rate of the embedding; default: adamw_lr."""
    unembedding_lr: float | None = Field(None, gt=0)
    """Peak learning rate of the output head, unless it is tied to the embedding; default:
    adamw_lr."""
    scalar_lr: float | None = Field(None, gt=0)
    """Peak learning rate of norms, biases and other vectors; default: adamw_lr."""
    initial_lr_fraction: float = Field(1.0, gt=0, le=1)
    """Factor on all learning rates here (nanochat's init_lr_frac): supervised training of a
    pretrained model begins at a fraction of its pretraining rates."""
    betas: tuple[Decay, Decay] = (0.9, 0.95)
    """AdamW's betas."""
    embedding_weight_decay: float | None = Field(None, ge=0)
    """Weight decay of the embedding; default: weight_decay. Vectors never decay."""
    unembedding_weight_decay: float | None = Field(None, ge=0)
    """Weight decay of the output head; default: weight_decay."""


class SFTAdamW(AdamW):
    """Adam with decoupled weight decay."""

    lr: float = Field(1e-5, gt=0)
    """Peak learning rate."""


class SFTAdamW8bit(AdamW8bit):
    """AdamW with moments of 8 bits, one scale per block of 256 (Dettmers et al. 2022, as in
    torchao): 2 bytes a weight instead of 8. Weights of fewer than 4,096 entries keep 32 bits."""

    lr: float = Field(1e-5, gt=0)
    """Peak learning rate."""


Optimizer = Annotated[AdamW | AdamW8bit | MuonAdamW, Field(discriminator="type")]
SFTOptimizer = Annotated[SFTAdamW | SFTAdamW8bit | MuonAdamW, Field(discriminator="type")]


def high_rate(optimizer: AdamWOptions | MuonAdamW, model: str = "") -> list[tuple[str, str]]:
    """A warning for a learning rate at which no model is known to train, with its key. `model`:
    the path of the model that is trained; '' for a new one."""
    # What a run has made may be in the middle of its training.
    is_foreign = model and not model.startswith(("run:", "step:"))
    muon = isinstance(optimizer, MuonAdamW)
    if isinstance(optimizer, MuonAdamW) and is_foreign:
        if optimizer.lr * optimizer.initial_lr_fraction <= MOST_FOR_TRAINED:
            return []
        sentence = (
            f"{optimizer.lr:g} is what Muon trains a new model with, and others have trained "
            f"{model:.100}: set optimizer.initial_lr_fraction to 0.02 or less, or "
            "optimizer.type to adamw"
        )
        return [("lr", sentence)]
    most, usual = (0.5, "0.02") if muon else (1e-2, "1e-6 to 1e-3")
    if optimizer.lr <= most:
        return []
    kind = "Muon" if muon else "AdamW"
    return [("lr", f"{optimizer.lr:g} is far above what {kind} trains with ({usual}): check it")]
