"""LoRA: the model is frozen, and small matrices added to its linear layers are trained."""

from typing import Annotated

from pydantic import Field, field_validator

from services.contracts.config.base import Section

BESIDE_EXPERTS = (
    "this model is a mixture of experts, and adapters exist for linear layers only, not for "
    "experts: leave model.lora out, or start from a dense model"
)
"""Why a mixture of experts is refused."""
MUON_BESIDE_ADAPTERS = (
    "optimizer.type muon is made for whole matrices, and model.lora trains two thin factors of "
    "each: use adamw, with about ten times its usual lr"
)
"""Why this optimizer is refused."""


class LoRA(Section):
    """Adapters (Hu et al. 2021): a layer W·x becomes W·x + alpha / rank · B·A·x. Only A and B are
    trained, published and saved in checkpoints."""

    rank: int = Field(16, ge=1, le=512)
    """Rows of A and columns of B. vLLM serves at most 512."""
    alpha: float = Field(32.0, gt=0)
    """Scale of the adapters, before division by `rank`."""
    targets: list[Annotated[str, Field(min_length=1)]] | None = Field(None, min_length=1)
    """Linear layers with adapters, by the ends of their names, e.g. [q_proj, v_proj]; default: all
    except the output head."""

    @field_validator("targets")
    @classmethod
    def _distinct(cls, targets: list[str] | None) -> list[str] | None:
        if targets is not None and len(set(targets)) != len(targets):
            raise ValueError("targets names a layer twice")
        return targets
