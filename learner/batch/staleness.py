"""Staleness: how many versions lie between a token's sampling and its training. Pure.

Versions form a tree: every start of a learner opens a new lineage at the version it went back to.
Staleness is counted along the tree, back to the fork and forward again.
"""

from dataclasses import dataclass

from services.contracts.weights import parse_version_tag


class UnknownLineage(ValueError):
    """A version of a lineage that began after this learner's: another has taken the run over."""


@dataclass(frozen=True)
class Ancestry:
    """The lineages that led to the present one: (name, version it began at), oldest first."""

    lineages: tuple[tuple[str, int], ...]

    def passed(self, lineage: str, version: int) -> bool:
        """Whether `version` of `lineage` led to the current lineage."""
        names = [name for name, _ in self.lineages]
        if lineage not in names:
            return False
        later = self.lineages[names.index(lineage) + 1 :]
        return all(version <= began for _, began in later)

    def staleness(self, tag: str, version: int) -> int:
        """Versions between `tag` and `version` of the current lineage.

        A version that the current lineage also passed through counts `version − u`; one that a
        dead lineage published beyond its fork counts back to the fork and forward again.
        Raises UnknownLineage for a lineage that is not an ancestor.
        """
        lineage, u = parse_version_tag(tag)
        names = [name for name, _ in self.lineages]
        if lineage not in names:
            raise UnknownLineage(
                f"version {tag} belongs to no lineage of this run ({', '.join(names)})"
            )
        place = names.index(lineage)
        # The lowest point at which a later lineage left: what lies above it is not on our path.
        fork = min((began for _, began in self.lineages[place + 1 :]), default=u)
        shared = min(u, fork)
        return (u - shared) + (version - shared)

    def too_stale(self, tag: str, version: int, bound: int) -> bool:
        """Whether what was sampled under `tag` may no longer be trained at `version`: the bound is
        `rollout.max_staleness`."""
        return self.staleness(tag, version) > bound
