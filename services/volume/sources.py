"""Decides from which host the parts of a file come: hosts that have it or are fetching it, or the
gateway.

For each part the hosts form a tree, in an order that a hash decides: the first host fetches the
part from the gateway, every other host from the host above it. So the gateway sends each byte once,
and on average a host sends as much as it receives. All hosts compute the same trees from the same
list of hosts, without other agreement. Different lists and hosts that are away only cost time: the
next source of a part is the host one further up, and then the gateway.

Pure: no network, no clock.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import xxhash

GATEWAY = ""
"""The address that stands for the gateway."""
CHILDREN = 2
"""Hosts that fetch a part from the same host."""
AT_ONCE, PER_SOURCE = 64, 2
"""Maximum requests in flight in total (most wait for their source), and to one source. Two, so a
link is busy between answers."""
MOST_WAITS = 5
"""Answers "not yet" of one source, without a part from anywhere, after which other sources are
asked: hosts with different lists may wait for each other."""
ROUNDS = 6
"""Rounds through all sources of a part, after which the file counts as unobtainable."""


class FetchFailure(Enum):
    """How a request ended without a part."""

    NOT_YET = "the source is fetching them itself"
    NOT_THERE = "the source has no such file"
    FAULTY = "the source does not answer, or answers wrongly"


@dataclass(frozen=True)
class Ask:
    """A request for any one of `parts` from `source`. A request to the gateway has one part."""

    source: str
    parts: tuple[int, ...]
    slot: int
    """The number of the request to this source. Each number has other parts."""


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
    part: int
    sources: list[str]
    at: int = 0
    """Index in `sources` of the next source."""
    rounds: int = 0


class FetchPlan:
    """Decides which source to ask next, and for which parts."""

    def __init__(
        self, name: str, parts: Sequence[int], own_address: str, hosts: Sequence[str]
    ) -> None:
        """Plan the missing `parts` of a file."""
        self._wanted: dict[int, _Wanted] = {}
        self._of: dict[str, set[int]] = defaultdict(set)
        """Parts by their next source."""
        self._left_alone: set[str] = set()
        self._waits: Counter[str] = Counter()
        """Answers "not yet" by source since a part came."""
        for part in parts:
            self._wanted[part] = wanted = _Wanted(part, sources_of(name, part, own_address, hosts))
            self._of[wanted.sources[0]].add(part)
        others = [host for host in hosts if host != own_address]
        # With several hosts, each has one request to the gateway, so the first parts come soon.
        slots = [(GATEWAY, slot) for slot in range(1 if others else PER_SOURCE)]
        slots += [(host, slot) for slot in range(PER_SOURCE) for host in others]
        self._idle = deque(slots)
        """(source, slot) without a request in flight; the one that was asked longest ago first."""
        self._active = 0

    @property
    def finished(self) -> bool:
        return not self._wanted

    def next(self) -> Ask | None:
        """Return a request to make now, or None to wait for an answer."""
        if self._active >= AT_ONCE:
            return None
        for _ in range(len(self._idle)):
            source, slot = self._idle.popleft()
            parts = sorted(part for part in self._of[source] if part % PER_SOURCE == slot)
            if source == GATEWAY:
                parts = sorted(self._of[source])[:1]
                self._of[source].difference_update(parts)
            if parts:
                self._active += 1
                return Ask(source, tuple(parts), slot)
            self._idle.append((source, slot))
        return None

    def done(self, ask: Ask, part: int) -> None:
        """Record that a part came, and is right."""
        self._end(ask)
        self._waits.clear()
        wanted = self._wanted.pop(part, None)
        if wanted is not None:
            self._of[wanted.sources[wanted.at]].discard(part)

    def failed(self, ask: Ask, outcome: FetchFailure) -> int:
        """Record that a request ended without a part. Returns the completed rounds through all
        sources of its parts."""
        self._end(ask)
        if outcome is FetchFailure.NOT_YET:
            self._waits[ask.source] += 1
            if self._waits[ask.source] < MOST_WAITS:
                return 0
            self._waits[ask.source] = 0
        elif ask.source != GATEWAY:
            self._left_alone.add(ask.source)
        moving = ask.parts if ask.source == GATEWAY else tuple(self._of[ask.source])
        return max((self._advance(self._wanted[part]) for part in moving), default=0)

    def _end(self, ask: Ask) -> None:
        self._active -= 1
        self._idle.append((ask.source, ask.slot))

    def _advance(self, wanted: _Wanted) -> int:
        """Move a part to its next source. Avoided hosts are skipped."""
        self._of[wanted.sources[wanted.at]].discard(wanted.part)
        while True:
            wanted.at += 1
            if wanted.at == len(wanted.sources):
                wanted.at, wanted.rounds = 0, wanted.rounds + 1
            if wanted.sources[wanted.at] not in self._left_alone:
                break
        self._of[wanted.sources[wanted.at]].add(wanted.part)
        return wanted.rounds
