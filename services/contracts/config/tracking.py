"""Trackers that receive a run's metrics, carried by the installation."""

from typing import Annotated, Any

from pydantic import Field, field_validator

from services.contracts.config.base import Section

Name = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f/\\]+$")]


class TensorBoard(Section):
    """Event files below `tracking/tensorboard/` of the data volume, for `tensorboard --logdir`."""


class WeightsAndBiases(Section):
    """A run of Weights & Biases with the id and the name of this run."""

    project: Name = "headrace"
    """The project."""
    entity: Name | None = None
    """User or team that the project belongs to. Default: that of the installation's key."""
    tags: list[Name] = Field(default_factory=list, max_length=32)
    """Tags of the run there."""


class MLflow(Section):
    """A run of MLflow with the name of this run, on the installation's tracking server."""

    experiment: Name = "headrace"
    """The experiment. A missing one is made."""


class Trackio(Section):
    """A run of Trackio with the id of this run."""

    project: Name = "headrace"
    """The project."""


class Tracking(Section):
    """Trackers by name. Each gets every metric of every step and evaluation, under the names of
    docs/metrics.md. The installation carries them. Its operator says which trackers runs may name
    (`HEADRACE_TRACKERS`), and holds their keys and addresses. A tracker that is away slows no
    run."""

    tensorboard: TensorBoard | None = None
    """Write TensorBoard's event files: `tensorboard: true`."""
    wandb: WeightsAndBiases | None = None
    """Log to Weights & Biases: `wandb: {project: mine}`."""
    mlflow: MLflow | None = None
    """Log to MLflow: `mlflow: {experiment: mine}`."""
    trackio: Trackio | None = None
    """Log to Trackio: `trackio: {project: mine}`."""

    @field_validator("*", mode="before")
    @classmethod
    def _with_defaults(cls, value: Any) -> Any:
        # `tensorboard: true` is what a section without a required key looks like.
        return ({} if value else None) if isinstance(value, bool) else value

    @property
    def chosen(self) -> dict[str, Section]:
        """The options of the trackers that the run names, by tracker."""
        return {name: options for name in TRACKERS if (options := getattr(self, name)) is not None}


TRACKERS = tuple(Tracking.model_fields)
