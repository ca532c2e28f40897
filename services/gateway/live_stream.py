"""Sends what changes, runs and workers and events, to all clients of `GET /v1/stream`.

One loop a process reads Redis, however many clients there are: which runs have changed, the events
of the runs that clients name, the heartbeats. It adds messages to a log in memory, and each client
reads the log at its own pace. A client that falls behind the log gets a `reset`.

Each message carries the place of its client: the newest change, and the newest event of each named
run. So a client can go on at any gateway.
"""

import asyncio
import json
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from weakref import WeakSet

from fastapi.sse import format_sse_event
from redis.exceptions import RedisError

from headrace.terminal import visible
from services.contracts.events import Event
from services.contracts.records import RunSummary, WorkerRecord
from services.gateway.run_index import RunIndex
from services.runtime.logs import get_logger
from services.runtime.tasks import end
from services.store import Store, Unreadable

TICK = 0.5
"""Seconds between two reads of events."""
RUNS_EVERY = 2
"""Ticks between two reads of runs."""
WORKERS_EVERY = 4
"""Ticks between two reads of workers."""
KEPT = 2000
"""Messages in the log."""
KEPT_BYTES = 16 << 20
"""Bytes of the log, about. A message may have hundreds of runs with long notes."""
MOST_CHANGED = 500
"""Runs that one message may have. More are a `reset`."""
MOST_LIVE = 200
"""Runs that are not over whose phase is described at each read."""
PIECE = 200
"""Events of a run that are read at once."""
PING = 15.0
"""Seconds without a message after which a client gets a comment, so that no proxy gives up."""
PLACE = re.compile(r"(\d{1,19}-\d{1,19})((?:,[A-Za-z0-9_-]{1,64}:\d{1,19}-\d{1,19})*)", re.ASCII)

log = get_logger(__name__)

Described = Callable[[list[RunSummary]], Awaitable[list[RunSummary]]]


@dataclass(frozen=True)
class Message:
    """A message as all clients get it."""

    kind: str
    text: bytes
    """Its lines, without the id."""
    place: str = ""
    """The newest change that it tells of, or the id of its event."""
    run: str = ""
    """The run whose event it is."""


@dataclass(eq=False)
class Listener:
    """The place of one client in the log, and the newest change and events that it has seen."""

    next: int
    """The number of the first message that it has not read."""
    changes: str
    runs: dict[str, str]
    """The runs that it names, with the newest event that it has seen of each."""
    first: list[Message] = field(default_factory=list)
    """Messages before those of the log."""
    logged: dict[str, str] = field(default_factory=dict)
    """The newest event of each named run that the log had. Those up to it are in Redis."""

    def take(self, message: Message) -> bytes | None:
        """Return a message with the place after it; None for a message that is not for this client,
        or that it has seen."""
        if message.kind == "event":
            seen = self.runs.get(message.run)
            if seen is None or _order(message.place) <= _order(seen):
                return None
            self.runs[message.run] = message.place
        elif message.place:
            self.changes = message.place
        return self.place + message.text

    @property
    def place(self) -> bytes:
        """The line with its place, for `Last-Event-ID`."""
        parts = [self.changes, *(f"{run}:{event}" for run, event in self.runs.items())]
        return f"id: {','.join(parts)}\n".encode()


class LiveStream:
    """Serves all clients of this process."""

    def __init__(self, store: Store, index: RunIndex, described: Described) -> None:
        self._store, self._index, self._described = store, index, described
        self._log: deque[Message] = deque()
        self._bytes = 0
        self._count = 0
        """Messages so far: the number of the next one."""
        self._listeners: WeakSet[Listener] = WeakSet()
        self._events: dict[str, str] = {}
        """The runs that clients name, with the newest event in the log."""
        self._shown: dict[str, tuple[object, ...]] = {}
        """The phase, reason and place in the queue of each unfinished run, as clients have them."""
        self._loads = 0
        """How often the index had read all runs when the log got its newest message of runs."""
        self._workers: list[WorkerRecord] = []
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def listen(self, runs: Sequence[str], last: str | None) -> Listener:
        """Begin to serve a client that names `runs`, from now on or after the place `last`. Raises
        RedisError, and Unreadable."""
        await self._index.catch_up()
        if self._task is None or self._task.done():
            self._begin()
            self._events.clear()
            self._task = asyncio.create_task(self._keep_reading())
        listener = Listener(self._count, self._index.changes or "", dict.fromkeys(runs, ""))
        self._listeners.add(listener)
        for run in runs:
            if run not in self._events:
                newest = await self._store.events.before_newest(run, 0)
                self._events.setdefault(run, _with_sequence(newest))
            listener.runs[run] = listener.logged[run] = self._events[run]
        if last is not None and not await self._resume(listener, last):
            listener.first.append(_reset(listener.changes))
        if self._workers:
            listener.first.append(_workers(self._workers))
        return listener

    async def _resume(self, listener: Listener, last: str) -> bool:
        """Let a client go on after its place. Return False if its place is gone."""
        match = PLACE.fullmatch(last)
        changed = await self._store.run_changes.after(match[1]) if match else None
        if match is None or changed is None or len(changed[0]) > MOST_CHANGED:
            return False
        seen = dict(part.split(":") for part in match[2].split(",") if part)
        for run in listener.runs.keys() & seen.keys():
            if seen[run] != "0-0" and not await self._store.events.has(run, seen[run]):
                return False
        known = {id: self._index.get(id) for id in sorted(changed[0])}
        if known:
            runs = await self._described([run for run in known.values() if run])
            deleted = [id for id, run in known.items() if run is None]
            listener.first.append(_runs(runs, deleted, listener.changes))
            listener.changes = match[1]
        listener.runs |= {run: seen[run] for run in listener.runs if run in seen}
        return True

    async def messages(self, listener: Listener) -> AsyncIterator[bytes]:
        """Yield server-sent events without an end."""
        # A line with the id alone sets the place of a client that gets no message.
        yield listener.place + b": open\n\n"
        try:
            for message in listener.first:
                yield listener.take(message) or b""
            async for text in self._missed(listener):
                yield text
            while True:
                arrived = self._arrived
                if texts := self._following(listener):
                    yield b"".join(texts)
                    continue
                try:
                    async with asyncio.timeout(PING):
                        await arrived.wait()
                except TimeoutError:
                    yield b": ping\n\n"
        finally:
            self._listeners.discard(listener)

    async def _missed(self, listener: Listener) -> AsyncIterator[bytes]:
        """Yield the events that a client missed, up to those of the log."""
        for run, logged in listener.logged.items():
            while _order(listener.runs[run]) < _order(logged):
                after = {run: listener.runs[run]}
                try:
                    events = (await self._store.events.read_several(after, PIECE))[run]
                except (RedisError, Unreadable):
                    events = []
                if not events:
                    listener.runs[run] = logged
                    yield listener.place + _reset("").text
                for event in events:
                    yield listener.take(_event(run, event)) or b""

    def _following(self, listener: Listener) -> list[bytes]:
        """Return the messages of the log that a client has not read."""
        oldest = self._count - len(self._log)
        if listener.next < oldest:
            listener.next, listener.changes = self._count, self._index.changes or ""
            listener.runs = {run: self._events.get(run, "0-0") for run in listener.runs}
            return [listener.place + _reset("").text]
        messages = islice(self._log, listener.next - oldest, None)
        listener.next = self._count
        return [text for message in messages if (text := listener.take(message))]

    async def close(self) -> None:
        """End the loop."""
        if self._task is not None:
            await end([self._task])

    async def _keep_reading(self) -> None:
        """Read Redis and fill the log while there are clients."""
        away, tick = False, 0
        while self._listeners:
            began = time.monotonic()
            try:
                if away:
                    await self._begin_again()
                    away = False
                await self._read(tick)
            # Without this loop clients would wait for news for ever.
            except Exception as error:
                if not away:
                    is_known = isinstance(error, RedisError | Unreadable)
                    log.warning("clients get no news", reason=repr(error), exc_info=not is_known)
                away = True
            tick += 1
            await asyncio.sleep(max(0.0, began + TICK - time.monotonic()))

    def _begin(self) -> None:
        """Take the runs as the index has them now: clients load the lists by themselves."""
        self._index.drain()
        self._loads = self._index.loads

    async def _begin_again(self) -> None:
        """Redis is back, perhaps without its newest writes."""
        for run in list(self._events):
            newest = await self._store.events.before_newest(run, 0)
            self._events[run] = _with_sequence(newest)
        await self._index.catch_up()
        self._begin()
        self._add([_reset(self._index.changes or "")])

    async def _read(self, tick: int) -> None:
        named = {run for listener in self._listeners for run in listener.runs}
        self._events = {run: at for run, at in self._events.items() if run in named}
        messages = []
        for run, events in (await self._store.events.read_several(self._events, PIECE)).items():
            messages += [_event(run, event) for event in events]
            if events:
                self._events[run] = events[-1].id
        self._add(messages)
        if tick % RUNS_EVERY == 0:
            await self._index.catch_up()
            self._add(await self._changed_runs())
        if tick % WORKERS_EVERY == 0:
            workers = await self._store.workers.list()
            if _beating(workers) != _beating(self._workers):
                self._add([_workers(workers)])
            self._workers = workers

    async def _changed_runs(self) -> list[Message]:
        """Return the message about runs whose record, phase or place in the queue has changed."""
        changed, deleted = self._index.drain()
        place, loads = self._index.changes or "", self._index.loads
        # A client may have seen what Redis has lost, at another gateway.
        has_lost, self._loads = loads != self._loads, loads
        if has_lost or len(changed) + len(deleted) > MOST_CHANGED:
            return [_reset(place)]
        ids = {run.id for run in changed}
        others = [self._index.get(id) for id in islice(self._index.live - ids, MOST_LIVE)]
        described = await self._described([*changed, *(run for run in others if run)])
        known, self._shown = self._shown, {}
        runs = []
        for run in described:
            seen = run.phase, run.reason, run.queue_position
            if not run.state.final:
                self._shown[run.id] = seen
            if run.id in ids or known.get(run.id, seen) != seen:
                runs.append(run)
        return [_runs(runs, deleted, place)] if runs or deleted else []

    def _add(self, messages: list[Message]) -> None:
        if messages:
            self._log.extend(messages)
            self._count += len(messages)
            self._bytes += sum(len(message.text) for message in messages)
            while len(self._log) > KEPT or (self._bytes > KEPT_BYTES and len(self._log) > 1):
                self._bytes -= len(self._log.popleft().text)
            arrived, self._arrived = self._arrived, asyncio.Event()
            arrived.set()


def _order(id: str) -> tuple[int, int]:
    """Return the order of an event's id."""
    at, _, number = id.partition("-")
    return int(at), int(number or 0)


def _with_sequence(id: str) -> str:
    return id if "-" in id else f"{id}-0"


def _beating(workers: list[WorkerRecord]) -> list[WorkerRecord]:
    """Return the workers without what changes at each heartbeat."""
    return [worker.model_copy(update={"heartbeat": 0.0}) for worker in workers]


def _text(kind: str, data: str) -> bytes:
    # JSON may hold line ends of Unicode, which would cut the event.
    return format_sse_event(data_str=visible(data), event=kind)


def _reset(place: str) -> Message:
    return Message("reset", _text("reset", "{}"), place)


def _event(run: str, event: Event) -> Message:
    data = json.dumps({"run": run}).removesuffix("}") + ", " + event.model_dump_json()[1:]
    return Message("event", _text("event", data), event.id, run)


def _runs(runs: list[RunSummary], deleted: list[str], place: str) -> Message:
    listed = ",".join(run.model_dump_json() for run in runs)
    data = f'{{"runs": [{listed}], "deleted": {json.dumps(deleted)}}}'
    return Message("runs", _text("runs", data), place)


def _workers(workers: list[WorkerRecord]) -> Message:
    listed = ",".join(worker.model_dump_json() for worker in workers)
    return Message("workers", _text("workers", f'{{"workers": [{listed}]}}'))
