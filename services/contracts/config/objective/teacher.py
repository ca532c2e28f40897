"""The teacher of on-policy distillation."""

from typing import Self

from pydantic import Field, model_validator

from services.contracts.config.base import Section, refuse_if


class Teacher(Section):
    """The model whose log-probabilities the policy learns from. It has to know the same tokens."""

    path: str | None = Field(None, min_length=1)
    """A folder, a hub name, or `run:RUN`, as for `model.path`. The learner loads this model in
    addition to the policy; `training.offload` and `placement` can move it to another place."""
    endpoint: str | None = Field(None, min_length=1, max_length=63)
    """A vLLM server, instead of `path`, by the name that the reward service gives it
    (`--teachers`). The server scores answers while other answers are sampled."""
    model: str | None = Field(None, min_length=1, max_length=1000)
    """With `endpoint`: the server's name of the model. null: the server's only model."""

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        refuse_if(
            (self.path is None) == (self.endpoint is None),
            "name one of path (a model for the learner to load) and endpoint (a vLLM server that "
            "the reward service knows)",
        )
        refuse_if(
            self.model is not None and self.endpoint is None,
            "model is what an endpoint calls its model: leave it out, or name endpoint "
            "instead of path",
        )
        return self
