"""The teacher of on-policy distillation."""

from pydantic import Field

from services.contracts.config.base import Section


class Teacher(Section):
    """The model whose log-probabilities the policy learns from. It has to know the same tokens."""

    path: str = Field(min_length=1)
    """A folder, a hub name, or `run:RUN`, as `model.path`. The learner loads it beside the policy;
    `training.offload` and `placement` can move it elsewhere."""
