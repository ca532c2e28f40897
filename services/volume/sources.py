"""Where the parts of a file come from: hosts that have it or fetch it, too, and the gateway.

For each part the hosts form a tree, in an order that a hash decides: the first fetches the part
from the gateway, every other one from the host above it. So the gateway sends each byte once, and a
host as much as it gets, on average. All hosts compute the same trees from the same list of hosts;
they need no other agreement. Hosts with different lists, and hosts that are away, cost time only:
the next source of a part is the host one further up, and then the gateway.

Pure: no network, no clock.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import xxhash

GATEWAY = ""
"""Stands for the gateway in place of a host's address."""
CHILDREN = 2
"""Hosts that fetch a part from the same host."""
AT_ONCE, PER_SOURCE = 16, 2
"""Requests in flight in all, and to one source. Two, so that a link is busy between answers."""
MOST_WAITS = 3
"""Answers of "not yet" of one source for one part, after which the next source is asked."""
ROUNDS = 6
"""How often all sources of a part are asked before the file counts as unobtainable."""


class Outcome(Enum):
    """How a request for a part ended without the part."""

    NOT_YET = "the source is fetching it itself"
    NOT_THERE = "the source has no such file"
    FAULTY = "the source does not answer, or answers wrongly"


def sources_of(name: str, part: int, own: str, hosts: Sequence[str]) -> list[str]:
    """Addresses to ask for a part, in order: the hosts above `own` in the part's tree, the gateway,
    and the other hosts. `own` may be '' or a host that is not among `hosts`: it fetches, and
    nobody fetches from it."""
    order = sorted(hosts, key=lambda host: (_hash(name, part, host), host))
    others = [host for host in order if host != own]
    if own in order:
        place = order.index(own)
    else:
        # A leaf: below any of the others.
        place = CHILDREN * (_hash(name, part, own) % len(order)) + 1 if order else 0
    above = []
    while place > 0:
        place = (place - 1) // CHILDREN
        above.append(order[place])
    return [*above, GATEWAY, *(host for host in others if host not in above)]


def _hash(name: str, part: int, host: str) -> int:
    return xxhash.xxh3_64_intdigest(f"{name}\n{part}\n{host}".encode())


@dataclass
class _Wanted:
    part: int
    sources: list[str]
    at: int = 0
    """Which of `sources` is asked next."""
    waits: int = 0
    rounds: int = 0


@dataclass
class Plan:
    """Which part to ask for next, and whom."""

    wanted: deque[_Wanted]
    _active: dict[int, _Wanted] = field(default_factory=dict)
    _left_alone: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, name: str, parts: Sequence[int], own: str, hosts: Sequence[str]) -> "Plan":
        """For the missing `parts` of a file. Those come first that others get from here."""
        wanted = [_Wanted(part, sources_of(name, part, own, hosts)) for part in parts]
        wanted.sort(key=lambda one: (one.sources.index(GATEWAY), one.part))
        return cls(deque(wanted))

    @property
    def finished(self) -> bool:
        """Whether every part is there."""
        return not self.wanted and not self._active

    def next(self) -> tuple[int, str] | None:
        """(part, source) to ask for now; None: ask for nothing until an answer comes."""
        if len(self._active) >= AT_ONCE:
            return None
        for one in self.wanted:
            self._skip(one)
            source = one.sources[one.at]
            if sum(source == a.sources[a.at] for a in self._active.values()) < PER_SOURCE:
                self.wanted.remove(one)
                self._active[one.part] = one
                return one.part, source
        return None

    def done(self, part: int) -> None:
        """A part is there, and right."""
        del self._active[part]

    def failed(self, part: int, outcome: Outcome) -> int:
        """A request ended without its part. Returns how often all sources of the part failed."""
        one = self._active.pop(part)
        source = one.sources[one.at]
        one.waits += outcome is Outcome.NOT_YET
        if outcome is Outcome.NOT_YET and one.waits < MOST_WAITS:
            self.wanted.append(one)
            return one.rounds
        if source != GATEWAY and outcome is not Outcome.NOT_YET:
            self._left_alone.add(source)
        self._advance(one)
        self.wanted.appendleft(one)
        return one.rounds

    def _advance(self, one: _Wanted) -> None:
        one.waits, one.at = 0, one.at + 1
        if one.at == len(one.sources):
            one.at, one.rounds = 0, one.rounds + 1

    def _skip(self, one: _Wanted) -> None:
        """Go on to a source that is not left alone; the gateway never is."""
        while one.sources[one.at] in self._left_alone:
            self._advance(one)
