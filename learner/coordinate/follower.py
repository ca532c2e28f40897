"""A rank other than 0: it takes part in what all ranks do together, and decides nothing."""

from learner.checkpoints.background_writer import PartWriter
from learner.checkpoints.captured import Captured
from learner.coordinate.crash_limit import CrashLimit
from learner.coordinate.run_rank import RunRank
from learner.environment import RunEnvironment
from learner.persist.disk_retry import CannotWrite, Disk, OtherRank
from learner.state import TrainingState
from learner.store.commands import Command
from services.contracts.config import RLConfig, SFTConfig
from services.runtime.logs import get_logger

log = get_logger(__name__)


class RankFollower(RunRank):
    """The side of a rank other than 0."""

    def __init__(
        self, config: RLConfig | SFTConfig, environment: RunEnvironment, state: TrainingState
    ) -> None:
        super().__init__(config, environment, state)
        root, status = environment.volume.root, OtherRank(environment.store, self._ranks.rank)
        self._disk = Disk(root, status, environment.stop)
        self._writer = PartWriter(root, self._disk, self._ranks)

    def end(self, command: Command, crash_limit: CrashLimit) -> str:
        """Write this rank's part of the last checkpoint. Returns the kind of `command`."""
        kind = super().end(command, crash_limit)
        try:
            self._writer.wait()
        except CannotWrite as error:
            log.error("the run ends before its newest state is written", reason=str(error))
        return kind

    def _keep(self, captured: Captured) -> None:
        self._writer.submit(captured)

    _finish = _keep
