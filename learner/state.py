"""What training changes, in one place: all that a checkpoint restores."""

from dataclasses import dataclass, field

from torch import nn

from learner.model.loading.models import LoadedModel
from learner.model.placement.offload import Offload
from learner.model.references import Copies
from learner.model.value_model import Critic
from learner.objective.baselines import Baselines
from learner.optim.optimizers import Optimizers

SCHEMA = 2


@dataclass(frozen=True)
class Supervised:
    """Where a supervised run stands in its data, and in its validations."""

    rows: list[int]
    """Rows of each dataset when the run began; those that came later are not in its order."""
    position: int = 0
    """In the order of its rows."""
    waiting: list[int] = field(default_factory=list)
    """Positions before that whose rows are not packed yet."""
    tokens: int = 0
    """Trained so far."""
    flops: float = 0.0
    """Of the passes so far."""
    smoothed: float = 0.0
    """The loss's moving average, before it is divided by the weights so far."""
    best_step: int | None = None
    """The step with the best validation."""
    best_loss: float | None = None
    """Its loss, or its bits per byte (`validation.best`)."""
    since_best: int = 0
    """Validations since that one."""


@dataclass(frozen=True)
class Progress:
    """Where a run stands: what cannot be read off the weights and the optimizer."""

    run: str
    step: int
    """Batches trained."""
    version: int
    lineages: list[tuple[str, int]]
    """`lineage.Ancestry`, the lineage that wrote this last."""
    base_model: str
    """What the run's first step started from: the KL reference."""
    kl_beta: float | None = None
    """Where an adaptive weight of the KL has gone."""
    kl_beta_from: float | None = None
    """The config's beta from which it went there: a resumed run that sets another begins anew."""
    critic_moments: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """`value_loss.Moments` of the returns that a critic has learned."""
    baselines: Baselines = field(default_factory=Baselines)
    """Of advantage `running_mean`."""
    supervised: Supervised | None = None
    """Of a supervised run."""
    schema: int = SCHEMA

    @property
    def kept_step(self) -> int | None:
        """A step whose checkpoint is kept however old it is."""
        return self.supervised.best_step if self.supervised else None

    @property
    def lineage(self) -> str:
        """The lineage that training goes on in."""
        return self.lineages[-1][0]

    @property
    def directory(self) -> str:
        """Name of its checkpoint's folder, e.g. `step-000010-9f3a1c`."""
        return f"step-{self.step:06d}-{self.lineage}"

    @property
    def path(self) -> str:
        """Its checkpoint's folder, relative to the data volume."""
        return f"runs/{self.run}/checkpoints/{self.directory}"


@dataclass
class TrainingState:
    """Model, optimizers, critic, copies of the policy, and how far the run is."""

    loaded: LoadedModel
    policy: nn.Module
    """The model as TokenLogprobs, sharded, or inside DDP where there are several ranks."""
    optimizers: Optimizers
    progress: Progress
    critic: Critic | None = None
    copies: Copies = field(default_factory=Copies)
    offloads: tuple[Offload, ...] = ()
    """The state of the optimizers, where it is on the host between updates."""
    computation: dict[str, str] = field(default_factory=dict)
    """How passes are made, and why, by part: for people."""
