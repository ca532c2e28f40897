"""Downloads one file: whole from the gateway, or part by part, also from other hosts.

An interrupted download continues after its last byte, in this process or a later one. Every byte is
checked against the manifest before it is used. A host that sends wrong bytes is noticed after one
part.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import anyio.to_thread
import xxhash

from headrace.redaction import redacted
from services.contracts.weights import WeightFile
from services.runtime.api_key import authorization
from services.runtime.logs import get_logger
from services.volume.files import DamagedFile, checked, fsync, opened_by_umask
from services.volume.partial import Partial, discard, partial_path, parts_path
from services.volume.sources import AT_ONCE, GATEWAY, ROUNDS, Ask, FetchPlan
from services.volume.transfer import (
    FileSource,
    NotThere,
    NotYet,
    SourceAway,
    Transfer,
    Unauthorized,
    WrongAnswer,
)

log = get_logger(__name__)

TRIES = 6
"""Failed attempts, without a byte between them, after which a source counts as away."""
LEAST_SECONDS, LATE = 3.0, 8.0
"""A host that needs longer for a part than LEAST_SECONDS, and than LATE times the mean of the parts
so far, is avoided."""
LEAST_RATE = 1 << 20
"""Bytes/s: the slowest accepted rate before any part has come."""
SHUNNED_SECONDS, AWAY_SECONDS = 600.0, 60.0
"""How long a host is avoided that sent wrong data, and one that was away or too slow."""
ANNOUNCED_SECONDS = 0.05
"""Delay before other hosts are listed: hosts learn of a new version at the same moment, and each
announces which files it fetches."""
LISTED_SECONDS = 1.0
"""Seconds for which the list of hosts is reused for all files of a version."""


class GatewayAway(ConnectionError):
    """The gateway cannot send a file now; retrying later may help."""


class KeyRefused(GatewayAway):
    """The gateway requires another API key; retrying helps once a user has set it."""


@dataclass
class Peers:
    """The other hosts that serve files to this one."""

    address: str
    """The address at which this host serves files; empty if it does not."""
    listed: Callable[[], Awaitable[Sequence[tuple[str, Collection[str]]]]]
    """Lists (address, names of the files that it has or is fetching) of hosts. This host may be
    among them."""
    key: str | None
    """The key that these hosts require."""
    _list: Sequence[tuple[str, Collection[str]]] = ()
    _list_ends: float = 0.0
    _shunned: dict[str, float] = field(default_factory=dict)

    async def of(self, name: str) -> list[str]:
        """Return the hosts that have or fetch `name`, including this one."""
        if time.monotonic() > self._list_ends:
            await asyncio.sleep(ANNOUNCED_SECONDS)
            self._list = await self.listed()
            self._list_ends = time.monotonic() + LISTED_SECONDS
        urls, now = {url for url, names in self._list if name in names}, time.monotonic()
        return sorted(url for url in urls if self._shunned.get(url, 0.0) < now)

    def source(self, url: str) -> FileSource:
        return FileSource(url, authorization(self.key), "host")

    def shun(self, url: str, error: Exception) -> None:
        """Avoid a host for a while."""
        away = isinstance(error, SourceAway)
        self._shunned[url] = time.monotonic() + (AWAY_SECONDS if away else SHUNNED_SECONDS)
        log.warning("a host is left alone", host=url, reason=str(error))


async def download_whole(path: Path, file: WeightFile | str, gateway: FileSource) -> None:
    """Download `file` to `path` from the gateway, by its name alone, or with size and checksum.

    Raises GatewayAway, KeyRefused, FileNotFoundError, DamagedFile.
    """
    name = file if isinstance(file, str) else file.name
    size, xxh3 = (None, None) if isinstance(file, str) else (file.bytes, file.xxh3)
    partial = partial_path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(file, str) or parts_path(path).exists():
        # The earlier bytes may belong to another file, or have gaps.
        discard(path)
    failures = 0
    with ThreadPoolExecutor(1) as executor, partial.open("ab") as data:
        while True:
            have = data.seek(0, 2)
            if size is not None and have >= size > 0:
                break
            try:
                await Transfer(gateway, name, size, start=have).run(executor, data.write)
                break
            except WrongAnswer as error:
                if not have:
                    raise DamagedFile(str(error)) from None
                # The earlier bytes belong to another file.
                data.truncate(0)
            except SourceAway as error:
                failures = 1 if data.seek(0, 2) > have else failures + 1
                if failures >= TRIES:
                    raise GatewayAway(str(error)) from None
                await asyncio.sleep(pause(failures))
            except NotThere as error:
                discard(path)
                raise FileNotFoundError(str(error)) from None
            except Unauthorized as error:
                raise refused(gateway) from error
    try:
        await checked(partial, size, xxh3, name)
    except DamagedFile:
        discard(path)
        raise
    if xxh3 is None:
        fsync(partial)
    opened_by_umask(partial)
    partial.rename(path)
    if xxh3 is None:
        fsync(path.parent)


async def download_parts(
    path: Path, file: WeightFile, gateway: FileSource, peers: Peers | None
) -> None:
    """Download `file` to `path` part by part, from other hosts and the gateway.

    Raises GatewayAway, KeyRefused, FileNotFoundError, DamagedFile.
    """
    hosts = await peers.of(file.name) if peers else []
    try:
        with Partial.opened(path, file) as partial:
            missing = await anyio.to_thread.run_sync(partial.missing)
            plan = FetchPlan(file.name, missing, peers.address if peers else "", hosts)
            parts = _Parts(file, partial, plan, gateway, peers)
            began = time.monotonic()
            await parts.run()
            partial.finish()
        log.info(
            "fetched",
            file=file.name,
            seconds=round(time.monotonic() - began, 3),
            bytes=file.bytes,
            parts_of_gateway=parts.of_gateway,
            parts_of_hosts=len(missing) - parts.of_gateway,
        )
    except (FileNotFoundError, DamagedFile):
        discard(path)
        raise


class _Parts:
    """Requests the missing parts of one file from other hosts and the gateway."""

    def __init__(
        self,
        file: WeightFile,
        partial: Partial,
        plan: FetchPlan,
        gateway: FileSource,
        peers: Peers | None,
    ) -> None:
        self._file, self._partial, self._plan = file, partial, plan
        self._gateway, self._peers = gateway, peers
        self.of_gateway = 0
        """Parts that the gateway sent."""
        self._seconds = 0.0
        self._parts = 0
        self._deadlines: dict[Ask, tuple[asyncio.Timeout, float]] = {}
        """Requests to other hosts, with their start times."""
        self._failures = 0
        """Failures of the gateway since its last byte."""

    async def run(self) -> None:
        """Get all parts of the plan."""
        active: dict[asyncio.Task[None], Ask] = {}
        with ThreadPoolExecutor(AT_ONCE) as executor:
            try:
                while not self._plan.finished:
                    while (ask := self._plan.next()) is not None:
                        active[asyncio.create_task(self._get(executor, ask))] = ask
                    done, _ = await asyncio.wait(active, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        self._note(active.pop(task), task)
            finally:
                for task in active:
                    task.cancel()
                if active:
                    await asyncio.wait(active)

    async def _get(self, executor: ThreadPoolExecutor, ask: Ask) -> None:
        """Get the part, checked."""
        of_peer = self._peers is not None and ask.source != GATEWAY
        source = self._peers.source(ask.source) if self._peers and of_peer else self._gateway
        start, stop = self._partial.span(ask.part)
        transfer = Transfer(source, self._file.name, self._file.bytes, start, stop)
        digest, received, began = xxhash.xxh3_64(), 0, time.monotonic()

        def take(data: memoryview) -> None:
            nonlocal received
            digest.update(data)
            self._partial.write(data, start + received)
            received += len(data)

        try:
            async with asyncio.timeout(None) as deadline:
                if of_peer:
                    self._deadlines[ask] = deadline, asyncio.get_running_loop().time()
                    self._set_deadlines()
                await transfer.run(executor, take)
        except TimeoutError:
            raise SourceAway(f"{source.shown} was too slow") from None
        except SourceAway:
            if not of_peer:
                self._failures += 1
                await asyncio.sleep(pause(self._failures))
            raise
        finally:
            self._deadlines.pop(ask, None)
        if (checksum := digest.hexdigest()) != self._file.parts[ask.part]:
            raise WrongAnswer(
                f"part {ask.part} of {self._file.name}, from byte {start}, has checksum "
                f"{checksum} at {source.shown}, the manifest says {self._file.parts[ask.part]}"
            )
        self._partial.mark(ask.part)
        self._seconds += time.monotonic() - began
        self._parts += 1
        self._set_deadlines()
        if not of_peer:
            self._failures = 0
            self.of_gateway += 1

    def _set_deadlines(self) -> None:
        limit = LEAST_SECONDS + self._partial.length / LEAST_RATE
        if self._parts:
            limit = max(LEAST_SECONDS, LATE * self._seconds / self._parts)
        for deadline, began in self._deadlines.values():
            if not deadline.expired():
                deadline.reschedule(began + limit)

    def _note(self, ask: Ask, ended: asyncio.Task[None]) -> None:
        """Tell the plan how a request ended. Raises the error that ends the download."""
        match error := ended.exception():
            case None:
                self._plan.done(ask)
            case NotYet():
                self._plan.not_yet(ask)
            case NotThere() if ask.source == GATEWAY:
                raise FileNotFoundError(str(error))
            case NotThere():
                self._plan.failed(ask)
            case Unauthorized() if ask.source == GATEWAY:
                raise refused(self._gateway)
            case SourceAway() | WrongAnswer() | Unauthorized():
                rounds = self._plan.failed(ask)
                if ask.source != GATEWAY and self._peers is not None:
                    self._peers.shun(ask.source, error)
                elif isinstance(error, WrongAnswer):
                    raise DamagedFile(str(error))
                if rounds >= ROUNDS:
                    raise GatewayAway(str(error))
            case _:
                raise error


def refused(gateway: FileSource) -> KeyRefused:
    return KeyRefused(
        f"the gateway {redacted(gateway.url)} wants an API key, or another one: set "
        "HEADRACE_API_KEY on this host"
    )


def pause(failures: int) -> float:
    return random.uniform(0, min(10.0, 0.2 * 2**failures))
