"""Downloads of one file by many hosts, in virtual time: the product's plans on simulated links.

The transfers of a link share its rate in each direction equally. A transfer that is slowed down by
its other end does not give its share to the others: real links are faster. An answer begins LATENCY
after its request. Disks and processors take no time.
"""

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from rollout.file_server import LOOK_SECONDS, PATIENCE_SECONDS
from services.contracts.weights import part_bytes
from services.volume.sources import GATEWAY, Ask, FetchPlan

LATENCY = 0.001
"""Seconds from a request to the first byte of its answer: connection, key, opening the file."""


@dataclass(eq=False)
class _Flow:
    source: str
    target: str
    left: float
    done: Callable[[], None]
    rate: float = 0.0
    since: float = 0.0
    turn: int = 0
    """Number of rate changes. A forecast of the end holds until the next change."""


class Links:
    """The clock, the links, and the bytes that each host has sent."""

    def __init__(self, rate: float, gateway_rate: float) -> None:
        """Rates in bytes/s: of the hosts' links, and of the gateway."""
        self.now = 0.0
        self.sent: Counter[str] = Counter()
        self._rate, self._gateway_rate = rate, gateway_rate
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._of: dict[str, dict[_Flow, None]] = defaultdict(dict)
        self._to: dict[str, dict[_Flow, None]] = defaultdict(dict)

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), call))

    def send(self, source: str, target: str, count: int, done: Callable[[], None]) -> None:
        """Transfer bytes, and call `done` at the end."""
        flow = _Flow(source, target, count, done, since=self.now)
        self.sent[source] += count
        self._of[source][flow] = self._to[target][flow] = None
        self._share(source, target)

    def run(self) -> None:
        while self._events:
            self.now, _, call = heapq.heappop(self._events)
            call()

    def _share(self, source: str, target: str) -> None:
        for flow in self._of[source] | self._to[target]:
            out = self._gateway_rate if flow.source == GATEWAY else self._rate
            rate = min(out / len(self._of[flow.source]), self._rate / len(self._to[flow.target]))
            flow.left -= flow.rate * (self.now - flow.since)
            flow.rate, flow.since, flow.turn = rate, self.now, flow.turn + 1
            self.after(flow.left / rate, partial(self._end, flow, flow.turn))

    def _end(self, flow: _Flow, turn: int) -> None:
        if turn != flow.turn:
            return
        flow.turn += 1
        del self._of[flow.source][flow], self._to[flow.target][flow]
        self._share(flow.source, flow.target)
        flow.done()


@dataclass
class SimulatedHost:
    """A host that fetches a file, or has it."""

    name: str
    links: Links
    parts: set[int] = field(default_factory=set)
    finished: float | None = None
    _waiting: dict[object, tuple[int, Callable[[], None], float]] = field(default_factory=dict)

    def give(self, part: int, begin: Callable[[], None], not_yet: Callable[[], None]) -> None:
        """Answer as `rollout.file_server` does: when the part is there, or `not_yet` after a
        time."""
        if part in self.parts:
            begin()
            return
        request = object()
        self._waiting[request] = part, begin, self.links.now
        self.links.after(PATIENCE_SECONDS, partial(self._late, request, not_yet))

    def got(self, part: int) -> None:
        """Answer the requests that wait for this part."""
        self.parts.add(part)
        for request, (wanted, begin, asked) in list(self._waiting.items()):
            if part == wanted:
                del self._waiting[request]
                # The server looks every LOOK_SECONDS.
                looks = int((self.links.now - asked) / LOOK_SECONDS) + 1
                wait = asked + looks * LOOK_SECONDS - self.links.now
                self.links.after(wait, begin)

    def _late(self, request: object, not_yet: Callable[[], None]) -> None:
        if self._waiting.pop(request, None) is not None:
            not_yet()


def fetched(
    links: Links, size: int, fetching: list[str], having: list[str], name: str = "file"
) -> dict[str, float]:
    """Fetch a file to all hosts of `fetching` at once, from the gateway, from `having` and from
    each other. Return the seconds until each has the whole file."""
    length = part_bytes(size)
    count = -(-size // length)
    everyone = [*fetching, *having]
    hosts = {host: SimulatedHost(host, links) for host in everyone}
    for host in having:
        hosts[host].parts = set(range(count))
    began, finished = links.now, {}

    def begin(host_name: str) -> None:
        plan = FetchPlan(name, range(count), host_name, everyone)

        def ask() -> None:
            while (request := plan.next()) is not None:
                links.after(LATENCY, partial(answer, request))
            if plan.finished and host_name not in finished:
                finished[host_name] = links.now - began

        def answer(request: Ask) -> None:
            def here() -> None:
                plan.done(request)
                hosts[host_name].got(request.part)
                ask()

            def not_yet() -> None:
                plan.not_yet(request)
                ask()

            def send() -> None:
                count = min(length, size - request.part * length)
                links.send(request.source, host_name, count, here)

            if request.source == GATEWAY:
                send()
            else:
                hosts[request.source].give(request.part, send, not_yet)

        ask()

    for host_name in fetching:
        begin(host_name)
    links.run()
    return finished
