"""The state that training changes: everything that a checkpoint restores."""

from dataclasses import dataclass, field

from torch import nn

from learner.model.loading.model_loader import LoadedModel
from learner.model.placement.offload import Offload
from learner.model.reference_policies import Copies
from learner.model.value_model import TrainedCritic
from learner.objective.baselines import Baselines
from learner.optim.optimizers import Optimizers

SCHEMA = 2


@dataclass(frozen=True)
class SupervisedProgress:
    rows: list[int]
    """Rows of each dataset when the run began. Later rows are not in the run's order."""
    position: int = 0
    """Position in the order of the rows."""
    waiting: list[int] = field(default_factory=list)
    """Earlier positions whose rows are not packed yet."""
    tokens: int = 0
    """Tokens trained so far."""
    flops: float = 0.0
    """FLOPs of all passes so far."""
    smoothed: float = 0.0
    """Moving average of the loss, before division by the sum of its weights."""
    best_step: int | None = None
    """Step of the best validation."""
    best_loss: float | None = None
    """Loss, or bits per byte (`validation.best`), of the best validation."""
    since_best: int = 0
    """Validations since the best one."""


@dataclass(frozen=True)
class TrainingProgress:
    """Progress of a run: everything besides weights and optimizer state."""

    run: str
    step: int
    """Batches trained."""
    version: int
    lineages: list[tuple[str, int]]
    """See `Ancestry`. The last lineage is the one that wrote this progress."""
    base_model: str
    """The model that the run started from: the KL reference."""
    kl_beta: float | None = None
    """The adapted weight of the KL."""
    kl_beta_from: float | None = None
    """The config's beta at the start of the adaptation. A resumed run with another beta begins
    anew."""
    critic_moments: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """`value_loss.Moments` of the returns that the critic has learned."""
    baselines: Baselines = field(default_factory=Baselines)
    """Running means of rewards for the advantage `running_mean`."""
    supervised: SupervisedProgress | None = None
    """Progress of a supervised run, else None."""
    schema: int = SCHEMA

    @property
    def kept_step(self) -> int | None:
        """Step whose checkpoint is kept at any age."""
        return self.supervised.best_step if self.supervised else None

    @property
    def lineage(self) -> str:
        return self.lineages[-1][0]

    @property
    def directory(self) -> str:
        """Name of the checkpoint's folder, e.g. `step-000010-9f3a1c`."""
        return f"step-{self.step:06d}-{self.lineage}"

    @property
    def path(self) -> str:
        """The checkpoint's folder, relative to the data volume."""
        return f"runs/{self.run}/checkpoints/{self.directory}"


@dataclass
class TrainingState:
    """Model, optimizers, critic, copies of the policy, and the run's progress."""

    loaded: LoadedModel
    policy: nn.Module
    """The model as TokenLogprobs: sharded, or inside DDP if there are several ranks."""
    optimizers: Optimizers
    progress: TrainingProgress
    critic: TrainedCritic | None = None
    copies: Copies = field(default_factory=Copies)
    offloads: tuple[Offload, ...] = ()
    """Optimizer states that are on the host between updates."""
    computation: dict[str, str] = field(default_factory=dict)
    """How the passes compute each part and why, in words for the user."""
