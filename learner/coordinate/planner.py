"""Form the run's batches from the stream: replay recorded plans, then plan new batches.

A plan is recorded before its batch is trained. Groups that are too stale are requeued. The planner
never acknowledges a group; only a commit does.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from learner.batch.cost import SequenceCost
from learner.batch.dealing import deal
from learner.batch.packing import minibatches
from learner.batch.staleness import Ancestry, UnknownLineage
from learner.coordinate.batch_selection import BatchSelection, WaitingGroup
from learner.errors import RunCannotGoOn
from learner.state import TrainingProgress
from learner.store.commands import GroupShare
from learner.store.run_store import RunStore
from services.contracts.config import RLConfig
from services.contracts.groups.group_lengths import GroupLengths
from services.contracts.weights import parse_version_tag, version_tag
from services.runtime.logs import get_logger
from services.store import Fenced
from services.store.work.trajectories import StreamGroup

log = get_logger(__name__)

POLL_SECONDS = 1.0
CROWDED_SECONDS = 0.01
"""Pause while a batch waits for groups in flight. Groups arrive one by one, and without the pause
each would cost a call to the store."""
REQUEUE_LIMIT = 3
"""Requeues after which a task is dropped: as `too_slow` if its groups were too stale, as
`unreadable` if they could not be read."""
REQUEUED = "stale groups are requeued"
"""Log message."""


class Planner:
    def __init__(
        self,
        config: RLConfig,
        store: RunStore,
        ancestry: Ancestry,
        cost: SequenceCost,
        shared: bool = False,
    ) -> None:
        """`cost`: cost of the model's sequences, by which a batch is dealt to ranks; `shared`: a
        rank computes a group's prompt once for all samples of the group."""
        algorithm, rollout = config.algorithm, config.rollout
        self._minibatches, self._seed = algorithm.minibatches, config.training.seed
        self._store, self._ancestry = store, ancestry
        self._cost, self._shared = cost, shared
        # A live run's session is over, so its users would have to hold it again.
        self._requeue_limit = 1 if config.data.live else REQUEUE_LIMIT
        self._waits_for_stragglers = rollout.stragglers == "wait"
        self._selection = BatchSelection(algorithm.prompts_per_step, rollout.max_staleness)
        self._recorded: dict[int, list[WaitingGroup]] = {}
        """Batches that an earlier learner planned, by step."""
        self._newest: list[WaitingGroup] = []
        """The groups of the newest plan."""
        self.staleness: list[int] = []
        """Staleness of each group of the newest plan, by its oldest token."""

    def begin(self) -> None:
        """Restore the plans and groups that an earlier learner left uncommitted."""
        pending = self._waiting(self._store.call(self._store.trajectories.pending))
        known = {group.entry: group for group in pending}
        for step, pairs in self._store.call(self._store.trajectories.plans).items():
            lost = [task for entry, task in pairs if entry not in known]
            if lost:
                raise RunCannotGoOn(
                    f"the group of task {lost[0]}, which the recorded batch of step {step} trains, "
                    "cannot be read; resume the run, and its task is sampled again"
                )
            self._recorded[step] = [known[entry] for entry, _ in pairs]
            self._selection.planned([entry for entry, _ in pairs], step)
        self._selection.arrive(pending)

    @property
    def last_recorded(self) -> int:
        """The last step that an earlier learner planned and this one has not trained; 0: none."""
        return max(self._recorded, default=0)

    def bound_staleness(self, versions: int) -> None:
        """Plan no group that is more versions old."""
        self._selection.max_staleness = versions

    def next(
        self, progress: TrainingProgress, interrupted: Callable[[], bool]
    ) -> list[WaitingGroup] | None:
        """Return the groups of the batch after `progress`, once their plan is recorded. Waits for
        groups. Return None once `interrupted`, which is called about once a second, returns
        True."""
        step = progress.step + 1
        if recorded := self._recorded.pop(step, None):
            log.info("replaying a recorded batch", step=step)
            self._newest = recorded
            # Counted as when the batch was planned: the sampling lineage was current then.
            tags = [group.oldest for group in recorded]
            self.staleness = [max(progress.version - parse_version_tag(t)[1], 0) for t in tags]
            return recorded
        try:
            groups = self._collect(progress, interrupted)
        except UnknownLineage as error:
            # When this lineage began, the store listed all earlier lineages.
            log.warning("a group of a later learner's version", reason=str(error))
            raise Fenced(self._store.run) from error
        if groups is None:
            return None
        self._newest = groups
        self.staleness = [self._ancestry.staleness(g.oldest, progress.version) for g in groups]
        pairs = [(group.entry, group.task) for group in groups]
        self._store.fenced(self._store.trajectories.plan, step, pairs)
        return groups

    def requeue(self, step: int, unreadable: Mapping[int, str]) -> None:
        """Have groups of the newest plan, the plan of `step`, sampled again. `unreadable`: the
        reasons by task position. The other groups can be planned again. No batch was trained on
        this plan."""
        bad = [group for group in self._newest if group.position in unreadable]
        for group in bad:
            self._store.fenced(
                self._store.trajectories.requeue,
                [group.entry],
                limit=self._requeue_limit,
                cause="unreadable",
                detail=unreadable[group.position],
                step=step,
            )
        self._selection.unplanned(self._newest, {group.entry for group in bad})
        self._store.sweep_payloads()

    def shares(
        self, groups: Sequence[WaitingGroup], step: int, ranks: int
    ) -> list[list[list[GroupShare]]]:
        """Return each rank's samples in the first pass over the batch of `step`, by minibatch and
        rank. Minibatches are cut before the samples are dealt to ranks, so the number of ranks does
        not change them."""
        positions = [group.position for group in groups]
        lengths = {group.position: group.lengths for group in groups}
        return [
            shares_of(part, [lengths[p] for p in part], ranks, self._cost, self._shared)
            for part in minibatches(positions, self._minibatches, self._seed, step, 0)
        ]

    def _collect(
        self, progress: TrainingProgress, interrupted: Callable[[], bool]
    ) -> list[WaitingGroup] | None:
        wait = 0.0
        while not interrupted():
            # Committed first, because a group that is read now may be committed after the read.
            self._selection.committed(self._store.committed_step)
            self._selection.arrive(self._read(wait))
            if batch := self._form(progress):
                return batch
            if self._selection.enough:
                time.sleep(CROWDED_SECONDS)
            wait = POLL_SECONDS
        return None

    def _form(self, progress: TrainingProgress) -> list[WaitingGroup] | None:
        """Return the next batch if it can be formed without making other groups too stale."""
        in_flight: dict[int, int] = {}
        if self._selection.enough and self._waits_for_stragglers:
            lineage = self._store.lineage
            in_flight = self._store.call(self._store.trajectories.in_flight, lineage)
            # A group that is no longer in flight by now was completed before `in_flight` was read.
            while fresh := self._read(0):
                self._selection.arrive(fresh)
        if stale := self._selection.stale(self._ancestry, progress.version):
            log.info(REQUEUED, groups=len(stale), step=progress.step + 1)
            entries = [group.entry for group in stale]
            limit = self._requeue_limit
            self._store.fenced(self._store.trajectories.requeue, entries, limit=limit)
            self._store.sweep_payloads()
        return self._selection.take(self._ancestry, progress.version, progress.step + 1, in_flight)

    def _read(self, wait: float) -> list[WaitingGroup]:
        return self._waiting(self._store.call(self._store.trajectories.read, wait=wait))

    @staticmethod
    def _waiting(groups: Iterable[StreamGroup]) -> list[WaitingGroup]:
        return [
            WaitingGroup(g.entry, g.task, version_tag(g.lineage, g.min_version), g.bytes, g.lengths)
            for g in groups
        ]


def shares_of(
    positions: Sequence[int],
    lengths: Sequence[GroupLengths],
    ranks: int,
    cost: SequenceCost,
    shared: bool = False,
) -> list[list[GroupShare]]:
    """Return each rank's samples of a minibatch. The groups' tasks have these `positions`."""
    shares: list[list[GroupShare]] = []
    counted: set[int] = set()
    for hand in deal(lengths, ranks, cost, shared):
        shares.append(
            [
                GroupShare(positions[g], samples, len(lengths[g].completions), g not in counted)
                for g, samples in hand.items()
            ]
        )
        counted.update(hand)
    return shares
