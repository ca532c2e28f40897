"""LoRA: a frozen model, and small matrices beside its linear layers, which alone are trained."""

from pydantic import Field, field_validator

from services.contracts.config.base import Section

BESIDE_EXPERTS = (
    "this model is a mixture of experts, which are no linear layers, so that they would have no "
    "adapters: leave model.lora out, or start from a dense model"
)
"""Why some models take none."""


class LoRA(Section):
    """Adapters (Hu et al. 2021): where a layer has made W·x, it makes W·x + alpha / rank · B·A·x,
    and only A and B are trained, published and kept in checkpoints."""

    rank: int = Field(16, ge=1, le=512)
    """Rows of A and columns of B. vLLM serves no more than 512."""
    alpha: float = Field(32.0, gt=0)
    """Scale of the adapters, before it is divided by `rank`."""
    targets: list[str] | None = Field(None, min_length=1)
    """Linear layers that get one, by the ends of their names, like [q_proj, v_proj]; default: all
    but the output head."""

    @field_validator("targets")
    @classmethod
    def _distinct(cls, targets: list[str] | None) -> list[str] | None:
        """`targets` that name a layer twice."""
        if targets is not None and len(set(targets)) != len(targets):
            raise ValueError("targets names a layer twice")
        return targets
