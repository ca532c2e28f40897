"""A model of the store as a few Python collections, without atomicity.

Positions stand for tasks. `version` is (lineage, number). The tree of versions is kept as each
version's parent, so that staleness is a walk between two nodes and not a formula.
"""

import math
from dataclasses import dataclass, field

Version = tuple[str, int]

ETA, BATCH, MAX_STEPS, RESERVE, STALE_LIMIT, TRIES = 1, 2, 8, 10, 3, 2
MAX_FILTERED = 2
"""For each group of a batch."""


@dataclass
class Attempt:
    """A lease of a task, held or ended."""

    name: str
    position: int
    version: Version
    lapsed: bool = False


@dataclass
class Finished:
    """A group in the stream, or the partial of a task."""

    position: int
    version: Version
    bytes: int


@dataclass
class Model:
    """One run, and after `continue_` the run that continues it."""

    dataset_rows: int
    budget: int
    lineage: str = ""
    version: int = 0
    published: int = 0
    """The version of the newest manifest, even after a learner has gone back."""
    mean: int | None = None
    """Mean size of recent groups."""
    steps: float = 0.0
    """Mean number of versions published between lease and completion of recent groups."""
    waited: set[str] = field(default_factory=set)
    """Attempts whose groups have waited for the stream."""
    committed: int = 0
    cursor: int = 0
    last_finished: int = 0
    filtered: list[int] = field(default_factory=list)
    """For each filtered group, the number of batches of groups completed before."""
    finished: int = 0
    """Number of completed groups, including requeued ones."""
    epoch: int = 0
    index: int = 0
    rows: int = 0
    row_of: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Epoch, rows and index of each task."""
    returned: set[int] = field(default_factory=set)
    held: dict[str, Attempt] = field(default_factory=dict)
    partials: dict[int, Finished] = field(default_factory=dict)
    """Partials of tasks, by position, each with the version of its oldest token."""
    stream: dict[int, Finished] = field(default_factory=dict)
    plans: dict[int, list[int]] = field(default_factory=dict)
    plan_age: dict[int, int] = field(default_factory=dict)
    """Staleness of each recorded plan at its recording."""
    trained: dict[int, int] = field(default_factory=dict)
    dropped: dict[int, str] = field(default_factory=dict)
    failures: dict[tuple[int, str], int] = field(default_factory=dict)
    max_staleness: int = 0
    parent: dict[Version, Version | None] = field(default_factory=dict)
    alias: dict[Version, Version] = field(default_factory=dict)
    branch: list[Version] = field(default_factory=list)
    """The living branch: its node at each version number."""

    def __post_init__(self) -> None:
        self.rows = self.dataset_rows

    # --- the tree of versions -------------------------------------------------------------------

    def take_over(self, lineage: str) -> None:
        """Start a learner at the checkpoint, under a new lineage."""
        self.lineage, self.version = lineage, self.committed
        if not self.branch:
            self.branch = [(lineage, 0)]
            self.parent[lineage, 0] = None
        self.branch = self.branch[: self.committed + 1]
        # The same weights under the new lineage's name: the distance between the two is 0.
        self.alias[lineage, self.committed] = self.branch[self.committed]

    def train(self) -> None:
        """Add a version."""
        self.version += 1
        self.published = self.version
        node = (self.lineage, self.version)
        self.parent[node] = self.branch[-1]
        self.branch.append(node)

    def path(self, version: Version) -> list[Version]:
        """Return the nodes from `version` to the root."""
        path: list[Version] = []
        node: Version | None = self.alias.get(version, version)
        while node is not None:
            path.append(node)
            node = self.parent[node]
        return path

    def staleness(self, version: Version) -> int:
        """Count the steps through the tree from `version` to the living version."""
        ours, theirs = self.path((self.lineage, self.version)), self.path(version)
        shared = set(ours) & set(theirs)
        return sum(node not in shared for node in ours + theirs)

    # --- workers --------------------------------------------------------------------------------

    def lease(self, count: int, version: int) -> tuple[str, list[int]]:
        """Return the (refusal, positions) that the store must answer."""
        for name in [name for name, attempt in self.held.items() if attempt.lapsed]:
            self.returned.add(self.held.pop(name).position)
        admitted = min(version + ETA + 1, MAX_STEPS) * BATCH
        taken = self.committed * BATCH + len(self.stream) + len(self.held)
        count = min(count, admitted - taken)
        if count <= 0:
            return "admission", []
        room = (self.budget - self.bytes) // (RESERVE if self.mean is None else self.mean)
        if self.ready >= BATCH:
            count = min(count, room + math.floor(self.steps * BATCH) - len(self.held))
        if count <= 0:
            return "bytes", []
        if self.filtered_now > MAX_FILTERED * BATCH:
            return "filtered_group", []
        fruitless = self.cursor - self.last_finished >= 2 * max(self.rows, self.dataset_rows)
        if fruitless and not self.held and not self.returned:
            return "exhausted", []
        return "", [self.next_position() for _ in range(count)]

    def next_position(self) -> int:
        if self.returned:
            position = min(self.returned)
            self.returned.remove(position)
            return position
        if self.index == self.rows:
            self.epoch, self.rows, self.index = self.epoch + 1, self.dataset_rows, 0
        self.row_of[self.cursor] = (self.epoch, self.rows, self.index)
        self.index += 1
        self.cursor += 1
        return self.cursor - 1

    def begin(self, name: str, position: int, version: int) -> tuple[Attempt, str]:
        """Return a new attempt, and how the store must mark its task's partial. A group is as old
        as its oldest token."""
        oldest, mark = version, ""
        if (partial := self.partials.get(position)) is not None:
            lineage, sampled = partial.version
            if lineage == self.lineage and sampled + ETA >= self.published:
                oldest, mark = min(version, sampled), "continued"
            else:
                mark = "stale"
                del self.partials[position]
        self.held[name] = Attempt(name, position, (self.lineage, oldest))
        return self.held[name], mark

    def set_aside(self, attempt: Attempt, bytes: int) -> bool | None:
        """Return whether the store must keep the partial; None if the attempt has ended."""
        if self.held.pop(attempt.name, None) is None:
            return None
        self.returned.add(attempt.position)
        left = Finished(attempt.position, attempt.version, bytes)
        before = self.partials.pop(attempt.position, None)
        if self.bytes + bytes <= self.budget:
            self.partials[attempt.position] = left
            return True
        if before is not None:
            self.partials[attempt.position] = before
        return False

    def complete(self, attempt: Attempt, bytes: int) -> bool | None:
        """Return whether the store must accept the group; None if it must wait."""
        if attempt.name not in self.held:
            return False
        if attempt.lapsed:
            del self.held[attempt.name]
            self.returned.add(attempt.position)
            return False
        lineage, version = attempt.version
        last_chance = lineage != self.lineage or version + ETA <= self.published
        lacking = self.ready < BATCH and self.published + 1 not in self.plans
        if self.bytes + bytes > self.budget and not lacking and not last_chance:
            self.waited.add(attempt.name)
            return None
        del self.held[attempt.name]
        mean = bytes if self.mean is None else self.mean
        self.mean = math.ceil(mean + (bytes - mean) / 32)
        if lineage == self.lineage and attempt.name not in self.waited:
            self.steps += (max(0, self.published - version) - self.steps) / 32
        self.partials.pop(attempt.position, None)
        self.stream[attempt.position] = Finished(attempt.position, attempt.version, bytes)
        self.last_finished = self.cursor
        self.finished += 1
        return True

    def drop(self, attempt: Attempt, reason: str) -> bool:
        """Return whether the store must accept the drop."""
        if self.held.pop(attempt.name, None) is None:
            return False
        self.partials.pop(attempt.position, None)
        self.dropped[attempt.position] = reason
        return True

    def filter_group(self, attempt: Attempt) -> bool:
        """Return whether the store must accept the filtered group."""
        if not self.drop(attempt, "filtered_group"):
            return False
        self.filtered.append(self.finished // BATCH)
        self.last_finished = self.cursor
        return True

    @property
    def ready(self) -> int:
        """Return the number of groups in the stream without a plan."""
        return len(self.stream) - len(self.plans) * BATCH

    @property
    def filtered_now(self) -> int:
        """Return the number of groups filtered during the present batch."""
        return self.filtered.count(self.finished // BATCH)

    def release(self, attempt: Attempt, cause: str) -> int:
        """Return the number of tasks that the store must drop."""
        if self.held.pop(attempt.name, None) is None:
            return 0
        return self.back(attempt.position, cause, cause, TRIES)

    def back(self, position: int, cause: str, reason: str, limit: int) -> int:
        if cause:
            self.partials.pop(position, None)
            again = self.failures.get((position, cause), 0) + 1
            self.failures[position, cause] = again
            if again >= limit:
                self.dropped[position] = reason
                return 1
        self.returned.add(position)
        return 0

    # --- the learner ----------------------------------------------------------------------------

    @property
    def planned(self) -> set[int]:
        return {position for plan in self.plans.values() for position in plan}

    @property
    def waiting(self) -> list[Finished]:
        """Return the groups without a plan, oldest version first."""
        free = [group for p, group in self.stream.items() if p not in self.planned]
        return sorted(free, key=lambda group: (-self.staleness(group.version), group.position))

    def stale(self) -> list[int]:
        """Return the positions of groups that are too stale for the next batch."""
        return [g.position for g in self.waiting if self.staleness(g.version) > ETA]

    def requeue(self, position: int) -> int:
        """Return the number of tasks that the store must drop."""
        del self.stream[position]
        return self.back(position, "stale", "too_slow", STALE_LIMIT)

    def plan(self, positions: list[int]) -> None:
        """Record the batch that is trained now."""
        ages = [self.staleness(self.stream[position].version) for position in positions]
        self.plans[self.version + 1] = positions
        self.plan_age[self.version + 1] = max(ages)

    def commit(self, step: int) -> int:
        """Return the number of groups that the store must acknowledge."""
        before = len(self.stream)
        for s in range(self.committed + 1, step + 1):
            for position in self.plans.pop(s):
                del self.stream[position]
                assert position not in self.trained
                self.trained[position] = s
            self.max_staleness = max(self.max_staleness, self.plan_age[s])
        self.committed = max(step, self.committed)
        return before - len(self.stream)

    def continue_(self) -> None:
        """End the run, and continue it as another one."""
        self.returned |= {a.position for a in self.held.values()} | set(self.stream)
        self.held, self.stream, self.plans, self.failures = {}, {}, {}, {}
        self.partials = {}
        self.published, self.mean, self.steps = 0, None, 0.0
        self.last_finished = self.cursor
        self.filtered, self.finished = [], 0

    # --- what must hold -------------------------------------------------------------------------

    @property
    def bytes(self) -> int:
        return sum(group.bytes for group in [*self.stream.values(), *self.partials.values()])

    @property
    def open(self) -> set[int]:
        """Return the tasks that have not ended. Fails unless each is in one place."""
        places = [*self.returned, *(a.position for a in self.held.values()), *self.stream]
        assert len(places) == len(set(places))
        return set(places)
