"""Decides from which host the parts of a file come: hosts that have it or are fetching it, or the
gateway.

For each part the hosts form a tree, in an order that a hash decides: the first host fetches the
part from the gateway, every other host from the host above it. So the gateway sends each byte once,
and on average a host sends as much as it receives. All hosts compute the same trees from the same
list of hosts, without other agreement. Different lists and hosts that are away only cost time: the
next source of a part is the host one further up, and then the gateway.

Pure: it uses neither network nor clock.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import xxhash

GATEWAY = ""
"""The address that stands for the gateway."""
CHILDREN = 2
"""Hosts that fetch a part from the same host."""
AT_ONCE, PER_SOURCE = 128, 8
"""Maximum requests in flight in total, and to one source. Most wait for their source."""
OF_GATEWAY = 2
"""Maximum requests in flight to the gateway, so its link is busy between answers; 1 with other
hosts, so the first parts come soon."""
MOST_WAITS = 5
"""Answers "not yet" about one part, without a part from anywhere, after which another source is
asked: hosts with different lists may wait for each other."""
ROUNDS = 6
"""Rounds through all sources of a part, after which the file counts as unobtainable."""


class Ask(NamedTuple):
    """A request for one part."""

    source: str
    part: int


def sources_of(name: str, part: int, own_address: str, hosts: Sequence[str]) -> list[str]:
    """Return the addresses to ask for a part, in order: the hosts above `own_address` in the part's
    tree, the gateway, and the other hosts. An `own_address` that is not in `hosts`, such as '',
    only fetches."""
    order = sorted(hosts, key=lambda host: (_hash(name, part, host), host))
    others = [host for host in order if host != own_address]
    if own_address in order:
        place = order.index(own_address)
    else:
        # A leaf: below any of the other hosts.
        place = CHILDREN * (_hash(name, part, own_address) % len(order)) + 1 if order else 0
    above = []
    while place > 0:
        place = (place - 1) // CHILDREN
        above.append(order[place])
    return [*above, GATEWAY, *(host for host in others if host not in above)]


def _hash(name: str, part: int, host: str) -> int:
    return xxhash.xxh3_64_intdigest(f"{name}\n{part}\n{host}".encode())


@dataclass
class _Wanted:
    sources: list[str]
    at: int = 0
    """Index in `sources` of the next source."""
    rounds: int = 0


class FetchPlan:
    """Decides which source to ask next, and for which part."""

    def __init__(
        self, name: str, parts: Sequence[int], own_address: str, hosts: Sequence[str]
    ) -> None:
        """Plan the missing `parts` of a file."""
        self._wanted = {part: _Wanted(sources_of(name, part, own_address, hosts)) for part in parts}
        self._of: dict[str, set[int]] = defaultdict(set)
        """Parts by their next source, unless they are in flight."""
        for part, wanted in self._wanted.items():
            self._of[wanted.sources[0]].add(part)
        others = [host for host in hosts if host != own_address]
        self._limits = dict.fromkeys(others, PER_SOURCE) | {GATEWAY: 1 if others else OF_GATEWAY}
        self._turns = deque(self._limits)
        """All sources; the one that was asked longest ago comes first."""
        self._active: Counter[str] = Counter()
        self._waits: Counter[int] = Counter()
        """Answers "not yet" by part, since any part came."""
        self._left_alone: set[str] = set()

    @property
    def finished(self) -> bool:
        return not self._wanted

    def next(self) -> Ask | None:
        """Return a request to make now, or None to wait for an answer."""
        if self._active.total() >= AT_ONCE:
            return None
        for _ in range(len(self._turns)):
            source = self._turns[0]
            self._turns.rotate(-1)
            if self._of[source] and self._active[source] < self._limits[source]:
                part = min(self._of[source])
                self._of[source].remove(part)
                self._active[source] += 1
                return Ask(source, part)
        return None

    def done(self, ask: Ask) -> None:
        """Record that a part came, and is right."""
        self._active[ask.source] -= 1
        self._waits.clear()
        del self._wanted[ask.part]

    def not_yet(self, ask: Ask) -> None:
        """Record that the source is still fetching the part."""
        self._waits[ask.part] += 1
        if self._waits[ask.part] < MOST_WAITS:
            self._again(ask)
        else:
            self._moved(ask)

    def failed(self, ask: Ask) -> int:
        """Record that a source lacks the file, does not answer, or answers wrongly. Returns the
        completed rounds through all sources of the part."""
        if ask.source != GATEWAY:
            self._left_alone.add(ask.source)
        return self._moved(ask)

    def _again(self, ask: Ask) -> None:
        self._active[ask.source] -= 1
        self._of[ask.source].add(ask.part)

    def _moved(self, ask: Ask) -> int:
        """Give the part, and if the source is a host all parts that wait for it, to their next
        sources. Return the most rounds through its sources that any moved part completed."""
        self._again(ask)
        moving = {ask.part} if ask.source == GATEWAY else set(self._of[ask.source])
        return max(self._advance(part) for part in moving)

    def _advance(self, part: int) -> int:
        """Move a part to its next source; skip avoided hosts. Return its completed rounds."""
        wanted = self._wanted[part]
        self._of[wanted.sources[wanted.at]].discard(part)
        while True:
            wanted.at += 1
            if wanted.at == len(wanted.sources):
                wanted.at, wanted.rounds = 0, wanted.rounds + 1
            if wanted.sources[wanted.at] not in self._left_alone:
                break
        self._of[wanted.sources[wanted.at]].add(part)
        return wanted.rounds
