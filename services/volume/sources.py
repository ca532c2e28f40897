"""Where the parts of a file come from: hosts that have it or fetch it, too, and the gateway.

For each part the hosts form a tree, in an order that a hash decides: the first fetches the part
from the gateway, every other one from the host above it. So the gateway sends each byte once, and a
host as much as it gets, on average. All hosts compute the same trees from the same list of hosts;
they need no other agreement. Hosts with different lists, and hosts that are away, cost time only:
the next source of a part is the host one further up, and then the gateway.

Pure: no network, no clock.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import xxhash

GATEWAY = ""
"""Stands for the gateway in place of a host's address."""
CHILDREN = 2
"""Hosts that fetch a part from the same host."""
AT_ONCE, PER_SOURCE = 64, 2
"""Requests in flight in all, most of which wait for their source, and to one source. Two, so that a
link is busy between answers."""
MOST_WAITS = 5
"""Answers of "not yet" of one source while no part came from anywhere, after which other sources
are asked: hosts with different lists may wait for each other."""
ROUNDS = 6
"""How often all sources of a part are asked before the file counts as unobtainable."""


class FetchFailure(Enum):
    """How a request ended without a part."""

    NOT_YET = "the source is fetching them itself"
    NOT_THERE = "the source has no such file"
    FAULTY = "the source does not answer, or answers wrongly"


@dataclass(frozen=True)
class Ask:
    """A request for one of `parts`, whichever `source` has. Of the gateway there is one part."""

    source: str
    parts: tuple[int, ...]
    slot: int
    """Which of the requests to this source it is. Each is for other parts."""


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
    rounds: int = 0


class FetchPlan:
    """Whom to ask next, and for which parts."""

    def __init__(self, name: str, parts: Sequence[int], own: str, hosts: Sequence[str]) -> None:
        """For the missing `parts` of a file."""
        self._wanted: dict[int, _Wanted] = {}
        self._of: dict[str, set[int]] = defaultdict(set)
        """Parts by the source that is asked for them next."""
        self._left_alone: set[str] = set()
        self._waits: Counter[str] = Counter()
        """Answers of "not yet" by source since a part came."""
        for part in parts:
            self._wanted[part] = one = _Wanted(part, sources_of(name, part, own, hosts))
            self._of[one.sources[0]].add(part)
        others = [host for host in hosts if host != own]
        # Of several hosts each has one request to the gateway, so that the first parts come soon.
        slots = [(GATEWAY, slot) for slot in range(1 if others else PER_SOURCE)]
        slots += [(host, slot) for slot in range(PER_SOURCE) for host in others]
        self._idle = deque(slots)
        """(source, slot) without a request in flight; the one that was asked longest ago first."""
        self._active = 0

    @property
    def finished(self) -> bool:
        """Whether every part is there."""
        return not self._wanted

    def next(self) -> Ask | None:
        """A request to make now; None: make none until an answer comes."""
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
        """A part came, and is right."""
        self._end(ask)
        self._waits.clear()
        one = self._wanted.pop(part, None)
        if one is not None:
            self._of[one.sources[one.at]].discard(part)

    def failed(self, ask: Ask, outcome: FetchFailure) -> int:
        """A request ended without a part. Returns how often all sources of a part have failed."""
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

    def _advance(self, one: _Wanted) -> int:
        """Go on to the next source that is not left alone; the gateway never is."""
        self._of[one.sources[one.at]].discard(one.part)
        while True:
            one.at += 1
            if one.at == len(one.sources):
                one.at, one.rounds = 0, one.rounds + 1
            if one.sources[one.at] not in self._left_alone:
                break
        self._of[one.sources[one.at]].add(one.part)
        return one.rounds
