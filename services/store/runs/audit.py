"""Audits a run's tasks from the ledger: finds lost, duplicated and stale ones. Pure.

A run and the runs that it continues are audited together: positions go on from one run to the next,
which takes over the open tasks. The audit trusts no counter: it looks for each task in the ledger's
rows and in each place of an open task.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from pydantic import BaseModel, Field

from services.contracts.rows.task import TaskPosition
from services.contracts.weights import parse_version_tag

SHOWN = 20
"""Problems that are described; all are counted."""


class Audit(BaseModel):
    """The audit of a run. Every task is in exactly one of `trained`, `dropped` and `in_flight`, or
    it is lost."""

    run: str = Field(description="The run's id.")
    tasks: int = Field(description="Tasks leased so far, by this run and those it continues.")
    trained: int = Field(description="Tasks that the current checkpoint was trained on.")
    dropped: dict[str, int] = Field(description="Tasks that ended untrained, by reason.")
    in_flight: int = Field(
        description="Tasks that have not ended: waiting to be leased again, held by a worker, or "
        "finished and not yet in a checkpoint."
    )
    lost: int = Field(description="Tasks that neither ended nor can be trained any more. 0.")
    duplicated: int = Field(description="Times a task is somewhere it was before or also is. 0.")
    max_staleness_seen: int = Field(
        description="Most versions between a trained group's oldest token and the version that "
        "trained on it, as of when its batch was planned."
    )
    max_staleness_allowed: int | None = Field(
        description="What `rollout.max_staleness` of the run allows; null for a supervised run."
    )
    too_stale: int = Field(description="Trained groups that were older than their run allows. 0.")
    unknown: list[str] = Field(
        default_factory=list,
        description="What this audit cannot know, because Redis has lost writes that it had "
        "acknowledged. Empty, unless a disk failed or somebody changed Redis' files.",
    )
    problems: list[str] = Field(
        description="The first lost and duplicated tasks, and stale batches, in words."
    )

    @property
    def clean(self) -> bool:
        """Whether no task is lost, duplicated or too stale."""
        return self.lost == self.duplicated == self.too_stale == 0


@dataclass(frozen=True)
class TaskEnding:
    """One row of the ledger: how tasks ended."""

    tasks: list[str]
    reason: str = ""
    """Why the tasks were dropped; '' if they were trained."""
    step: int = 0
    oldest: list[str] = field(default_factory=list)
    """For each trained task, the version tag of its oldest token; '' if its group was gone."""
    planned: str = ""
    """The lineage under which the batch was planned."""


@dataclass(frozen=True)
class Generation:
    """One of the audited runs, as the store has it at one moment."""

    run: str
    base_step: int
    """The step at which it began."""
    position: int
    """The cursor: all positions below it were leased."""
    endings: list[TaskEnding]
    lineages: list[tuple[str, int]]
    """(lineage, version it began at), oldest first, including the runs before it."""
    returned: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    groups: list[tuple[str, str]] = field(default_factory=list)
    """(entry, task) in the stream."""
    payloads: frozenset[str] = frozenset()
    """Positions that have a payload."""
    plans: dict[int, list[tuple[str, str]]] = field(default_factory=dict)
    """(entry, task) of each batch that no checkpoint covers yet."""
    max_staleness: int | None = None
    """The limit of its config."""
    lost_writes: str = ""
    """A description of writes that Redis has lost."""
    order: dict[str, int] = field(default_factory=dict)
    """The place of its next new task, by the names of `new_run.ORDER`; empty if supervised."""
    newest: str = ""
    """The newest row of its ledger, or empty."""


def audit(generations: Sequence[Generation]) -> Audit:
    """Audit the last of `generations`. Each continues the one before it."""
    last = generations[-1]
    places: dict[int, list[str]] = defaultdict(list)
    dropped: Counter[str] = Counter()
    trained = 0
    for _, ending in _counted(generations):
        where = f"dropped as {ending.reason}" if ending.reason else f"trained at {ending.step}"
        for task in ending.tasks:
            seen = places[position(task)]
            if not seen:
                dropped[ending.reason] += bool(ending.reason)
                trained += not ending.reason
            seen.append(where)
    ended = set(places)
    for where, tasks in (
        ("returned", last.returned),
        ("held", last.held),
        ("in the stream", [task for _, task in last.groups]),
    ):
        for task in tasks:
            places[position(task)].append(where)
    lost = _lost(last, places)
    twice = _duplicated(last, places)
    oldest, stale = _stalest(generations)
    return Audit(
        run=last.run,
        tasks=last.position,
        trained=trained,
        dropped={reason: count for reason, count in sorted(dropped.items()) if count},
        in_flight=len(places.keys() - ended - lost.keys()),
        lost=len(lost),
        duplicated=sum(count for count, _ in twice),
        max_staleness_seen=oldest,
        max_staleness_allowed=last.max_staleness,
        too_stale=sum(count for count, _ in stale),
        unknown=[generation.lost_writes for generation in generations if generation.lost_writes],
        problems=[text for _, text in [*lost.items(), *twice, *stale]][:SHOWN],
    )


def _counted(generations: Sequence[Generation]) -> Iterator[tuple[Generation, TaskEnding]]:
    """Yield the endings that count, each with its run. Batches that an earlier run trained beyond
    the step at which the next run took over do not count."""
    for place, generation in enumerate(generations):
        taken_over = min((later.base_step for later in generations[place + 1 :]), default=inf)
        for ending in generation.endings:
            if ending.reason or ending.step <= taken_over:
                yield generation, ending


def trained(generations: Sequence[Generation]) -> Iterator[TaskEnding]:
    """Yield the batches that led to the last run's checkpoint."""
    return (ending for _, ending in _counted(generations) if not ending.reason)


def _stalest(generations: Sequence[Generation]) -> tuple[int, list[tuple[int, str]]]:
    """Return the highest staleness of a trained group. Also return, for each batch with groups that
    were staler than allowed, their number and a sentence."""
    oldest, stale = 0, []
    for generation, ending in _counted(generations):
        ages = _staleness(ending, generation.lineages) if not ending.reason else []
        oldest = max([oldest, *ages])
        allowed = generation.max_staleness
        beyond = [age for age in ages if allowed is not None and age > allowed]
        if beyond:
            sentence = (
                f"{len(beyond)} groups of step {ending.step} of run {generation.run} were up to "
                f"{max(beyond)} versions behind, of {allowed} allowed"
            )
            stale.append((len(beyond), sentence))
    return oldest, stale


def position(task: str) -> int:
    """Return the position that names a task."""
    return TaskPosition.parse(task).position


def _lost(run: Generation, places: dict[int, list[str]]) -> dict[int, str]:
    """Describe what happened to each lost task. A task whose group cannot be trained is lost
    wherever it is."""
    entries = {entry for entry, _ in run.groups}
    nowhere = {
        number: f"task {number} was leased, has not ended and is nowhere"
        for number in range(run.position)
        if number not in places
    }
    unreadable = {
        position(task): f"task {position(task)} is in the stream without its payload"
        for _, task in run.groups
        if str(position(task)) not in run.payloads
    }
    gone = {
        position(task): f"task {position(task)} is planned for step {step}, not in the stream"
        for step, pairs in run.plans.items()
        for entry, task in pairs
        if entry not in entries
    }
    return dict(sorted((nowhere | unreadable | gone).items()))


def _duplicated(run: Generation, places: dict[int, list[str]]) -> list[tuple[int, str]]:
    twice = [
        (len(where) - 1, f"task {number} is in several places: {', '.join(where)}")
        for number, where in sorted(places.items())
        if len(where) > 1
    ]
    planned: dict[int, list[int]] = defaultdict(list)
    for step, pairs in sorted(run.plans.items()):
        for _, task in pairs:
            planned[position(task)].append(step)
    again = [
        (len(steps) - 1, f"task {number} is planned for steps {', '.join(map(str, steps))}")
        for number, steps in planned.items()
        if len(steps) > 1
    ]
    # A task at a position that the cursor has not reached would be leased a second time.
    ahead = [
        (1, f"task {number} is {where[0]}, and the cursor has not reached its position")
        for number, where in sorted(places.items())
        if number >= run.position
    ]
    return twice + again + ahead


def _staleness(batch: TaskEnding, lineages: list[tuple[str, int]]) -> list[int]:
    """Return the staleness of each group of a batch: versions between its oldest token and its
    training.

    The versions form a tree of lineages. The tree of the time of the plan counts: after a rollback,
    a learner trains exactly the planned batch, under a lineage with the same versions up to there.
    """
    names = [name for name, _ in lineages]
    known = lineages[: names.index(batch.planned) + 1] if batch.planned in names else lineages
    version = batch.step - 1
    return [_distance(tag, version, known) for tag in batch.oldest if tag]


def _distance(tag: str, version: int, lineages: list[tuple[str, int]]) -> int:
    """Count versions from `tag` back to where its lineage left the living branch, and on to
    `version`."""
    lineage, sampled = parse_version_tag(tag)
    names = [name for name, _ in lineages]
    later = lineages[names.index(lineage) + 1 :] if lineage in names else []
    shared = min([sampled, *(began for _, began in later)])
    return (sampled - shared) + (version - shared)
