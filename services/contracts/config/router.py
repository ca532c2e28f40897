"""Routers of a mixture-of-experts model: losses that balance them, and replay of their choices."""

from pydantic import Field

from services.contracts.config.base import Section


class Balance(Section):
    """Only for models with experts; others accept the defaults and 0 alone."""

    aux_loss: float | None = Field(None, ge=0)
    """Weight of the load-balancing loss; null: the model's own (`router_aux_loss_coef` in its
    config); 0: none. Costs one more forward pass, unless routing is replayed."""
    z_loss: float | None = Field(None, ge=0)
    """Weight of the router z-loss, the mean of logsumexp(router logits)²; null: the model's own
    (`router_z_loss_coef`, which few have); 0: none."""

    @property
    def needs_experts(self) -> bool:
        """Whether only a model with experts can run this."""
        return bool(self.aux_loss) or bool(self.z_loss)


class Router(Balance):
    """Only for models with experts; others accept the defaults and 0 alone."""

    replay: bool = False
    """vLLM records the experts of each token, and the learner uses the same ones. Costs layers ×
    experts per token bytes a token on the wire, twice that beyond 256 experts."""

    @property
    def needs_experts(self) -> bool:
        """Whether only a model with experts can run this."""
        return self.replay or super().needs_experts
