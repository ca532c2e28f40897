"""Staleness, the versions between a token's sampling and its training, and its bound. Pure.

The bound is `rollout.max_staleness`. `lease.lua` applies it before sampling (admission), with the
versions that are still to come; `batches_left` applies it to the groups that have been sampled.
Versions form a tree: every start of a learner opens a new lineage at the version that it resumed
from. Staleness is counted along the tree: back to the fork, then forward.
"""

from dataclasses import dataclass

from services.contracts.weights import parse_version_tag


class UnknownLineage(ValueError):
    """A version of a lineage that began after this learner started: another learner took over."""


@dataclass(frozen=True)
class Ancestry:
    """The lineages that led to the current one, oldest first, as (name, version at its start)."""

    lineages: tuple[tuple[str, int], ...]

    def passed(self, lineage: str, version: int) -> bool:
        """Whether `version` of `lineage` is an ancestor of the current lineage."""
        names = [name for name, _ in self.lineages]
        if lineage not in names:
            return False
        later = self.lineages[names.index(lineage) + 1 :]
        return all(version <= began for _, began in later)

    def staleness(self, tag: str, version: int) -> int:
        """Count the versions between `tag` and `version` of the current lineage.

        An ancestor version `u` counts `version − u`. A version that a dead lineage published after
        its fork counts back to the fork and then forward. Raises UnknownLineage if the lineage of
        `tag` is not an ancestor.
        """
        lineage, u = parse_version_tag(tag)
        names = [name for name, _ in self.lineages]
        if lineage not in names:
            raise UnknownLineage(
                f"version {tag} belongs to no lineage of this run ({', '.join(names)})"
            )
        place = names.index(lineage)
        # The lowest point at which a later lineage forked. Versions above it are not on our path.
        fork = min((began for _, began in self.lineages[place + 1 :]), default=u)
        shared = min(u, fork)
        return (u - shared) + (version - shared)

    def batches_left(self, oldest: str, version: int, max_staleness: int) -> int:
        """Return how many batches after the one trained at `version` can still train a group whose
        oldest token is of version `oldest`. Below 0 the group is too stale."""
        return max_staleness - self.staleness(oldest, version)
