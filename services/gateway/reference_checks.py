"""Reads all references of a dataset with a verifier, in the background, and keeps what it found.

There is one check for each verifier, its parameters, and version of a dataset; whoever asks for it
again joins it. Checks take turns batch by batch, so a small dataset does not wait for a large one,
and a run's own items wait for one batch at most. The report is kept in the dataset's folder, and
is deleted with it. A report of a user's own verifier is not kept, because its code may change.
"""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx
import msgspec
import xxhash

from services.contracts.records import DatasetRecord
from services.contracts.scores import (
    MOST_ROWS,
    CheckRequest,
    CheckResponse,
    ReferenceRow,
    Use,
)
from services.datasets import DatasetError, DatasetReader
from services.datasets.findings import FEW
from services.runtime.api_key import authorization, key_for_rewards
from services.runtime.logs import get_logger
from services.runtime.tasks import end
from services.settings import Settings
from services.store import Store
from services.volume import Volume, written_beside

log = get_logger(__name__)

CHECK_SECONDS = 10
"""For one request with a few rows. A pattern that never ends costs the reward service 5 s."""
BATCH_SECONDS = 60
"""For one request with a batch of rows."""
TURN_SECONDS = 0.5
"""Target for a batch, which grows until it takes this long."""
FIRST_BATCH = 64
BATCH_BYTES = 4 << 20
"""Bytes of the references of a batch."""
MOST_CHECKS = 32
"""Checks at once. A further one is not begun."""
SHOWN = 3
"""Unreadable references that a report names."""
FOLDER = "references"
"""Below the dataset's folder."""
COLUMN = "check that they come from the right column (`headrace datasets add FILE --answer COLUMN`)"


class NotChecked(Exception):
    """Not all references were read. The message ends a sentence that says so."""


class ReferenceReport(msgspec.Struct):
    """The state of a check."""

    dataset: str
    verifier: str
    rows: int
    """Rows of the dataset."""
    checked: int = 0
    unreadable: int = 0
    first: list[tuple[int, str]] = []
    """The first unreadable ones: the row, and why."""
    remarked: int = 0
    """References that can be read, and that the verifier has a remark about."""
    remark: str = ""
    """The first remark."""
    segments: list[str] = []
    """Checksums of the rows that were read."""

    @property
    def none_readable(self) -> bool:
        """Whether no reference that was read can be used."""
        return self.unreadable == self.checked > 0

    def doubt(self) -> str:
        """Quote the verifier's remark if it is about more than half of the references that were
        read. Return '' otherwise."""
        if self.checked < FEW or self.remarked * 2 <= self.checked:
            return ""
        return (
            f"{self.remarked:,} of {self._of} references of {self.dataset} {self.remark}: {COLUMN}"
        )

    def sentence(self) -> str:
        """Say how many references cannot be read, with the first of them."""
        # The way out stands behind the first semicolon, and once is enough.
        short = [(row, reason.partition(";")[0]) for row, reason in self.first[1:]]
        named = "; ".join(f"row {row}: {reason}" for row, reason in [*self.first[:1], *short])
        more = "; …" if self.unreadable > len(self.first) else ""
        return (
            f"verifier {self.verifier!r} cannot read {self.unreadable:,} of {self._of} references "
            f"of {self.dataset} ({named}{more})"
        )

    @property
    def _of(self) -> str:
        if self.checked == self.rows:
            return f"{self.rows:,}"
        return f"the {self.checked:,} that were read of {self.rows:,}"


@dataclass(frozen=True)
class ReferenceCheck:
    """A check that is running or done."""

    report: ReferenceReport
    """Grows while the check goes on."""
    task: "asyncio.Task[None]"
    """Raises NotChecked."""


async def ask_check(
    settings: Settings, http: httpx.AsyncClient, request: CheckRequest, seconds: float
) -> CheckResponse:
    """Return the reward service's answer to a check. Raises httpx.HTTPError, and ValueError for an
    unreadable answer."""
    response = await http.post(
        f"{settings.reward_url}/v1/verifiers/check",
        json=request.model_dump(),
        headers=authorization(key_for_rewards(settings)),
        timeout=httpx.Timeout(seconds, connect=3),
    )
    response.raise_for_status()
    return CheckResponse.model_validate_json(response.content)


class ReferenceChecks:
    """Checks reference answers of datasets for one gateway, and keeps the reports."""

    def __init__(self, settings: Settings, http: httpx.AsyncClient, store: Store) -> None:
        self._settings, self._http, self._store = settings, http, store
        self._volume = Volume(settings.data)
        self._turn = asyncio.Lock()
        self._checks: dict[str, ReferenceCheck] = {}
        self._tellers: set[asyncio.Task[None]] = set()

    async def check(self, record: DatasetRecord, use: Use, keep: bool) -> ReferenceCheck:
        """Return the check of all rows of `record`: the check that is running, the kept report of
        an earlier check, or a new check. `keep`: whether its report holds for later submissions
        too. Raises NotChecked if there are too many checks."""
        segments = [segment.xxh3 for segment in record.segments]
        key = _key(record, use)
        going_on = self._checks.get(key)
        if going_on is not None and going_on.report.segments == segments:
            return going_on
        file = self._volume.path(f"datasets/{record.id}/{FOLDER}/{key}.json")
        path = file if keep else None
        kept = await anyio.to_thread.run_sync(_kept, path) if path else None
        if kept is not None and kept.segments == segments:
            return ReferenceCheck(kept, asyncio.create_task(_done()))
        if len(self._checks) >= MOST_CHECKS:
            raise NotChecked("too many other checks go on")
        report = ReferenceReport(record.name, use.verifier, record.rows, segments=segments)
        check = ReferenceCheck(report, asyncio.create_task(self._read(record, use, report, path)))
        self._checks[key] = check
        check.task.add_done_callback(lambda _: self._forget(key, check))
        return check

    def tell(self, run: str, checks: Iterable[ReferenceCheck]) -> None:
        """Add a warning to the run's events for each check that finds something."""
        for check in checks:
            teller = asyncio.create_task(self._tell(run, check))
            self._tellers.add(teller)
            teller.add_done_callback(self._tellers.discard)

    async def close(self) -> None:
        """End all checks."""
        await end([*self._tellers, *(check.task for check in self._checks.values())])

    def _forget(self, key: str, check: ReferenceCheck) -> None:
        if self._checks.get(key) is check:
            del self._checks[key]
        # Whoever waits reads it as well. Nobody may wait.
        if not check.task.cancelled() and (error := check.task.exception()):
            log.warning("references not checked", dataset=check.report.dataset, reason=str(error))

    async def _tell(self, run: str, check: ReferenceCheck) -> None:
        await asyncio.wait([check.task])
        sentences = [finding(check), check.report.doubt()]
        if (message := "; ".join(filter(None, sentences))) and not check.task.cancelled():
            await self._store.events.add(run, "warning", {"message": message})

    async def _read(
        self, record: DatasetRecord, use: Use, report: ReferenceReport, path: Path | None
    ) -> None:
        reader, batch = DatasetReader(self._volume, record), FIRST_BATCH
        while report.checked < record.rows:
            async with self._turn:
                try:
                    rows = await anyio.to_thread.run_sync(_rows, reader, report.checked, batch)
                except (OSError, DatasetError) as error:
                    raise NotChecked(f"its rows cannot be read: {error}") from None
                began = time.monotonic()
                response = await self._checked(use, rows)
                seconds = time.monotonic() - began
            report.remarked += len(response.remarks)
            if response.remarks and not report.remark:
                report.remark = response.remarks[0].message[:300]
            for problem in response.problems:
                if problem.row is None:
                    raise NotChecked(problem.message)
                report.unreadable += 1
                if len(report.first) < SHOWN:
                    report.first.append((report.checked + problem.row, problem.message[:300]))
            report.checked += len(rows)
            batch = max(FIRST_BATCH, min(MOST_ROWS, int(batch * TURN_SECONDS / max(seconds, 1e-3))))
        # A verifier that reads no reference may be mended; the next submission asks it again.
        if path and not report.none_readable:
            await anyio.to_thread.run_sync(_keep, path, report)

    async def _checked(self, use: Use, rows: list[ReferenceRow]) -> CheckResponse:
        """Raises NotChecked."""
        asked = CheckRequest(uses=[use.model_copy(update={"rows": rows})], teacher=None)
        deadline = time.monotonic() + BATCH_SECONDS
        while True:
            try:
                return await ask_check(self._settings, self._http, asked, BATCH_SECONDS)
            except httpx.HTTPStatusError as error:
                busy = error.response.status_code in (429, 503)
                if not busy or time.monotonic() > deadline:
                    raise NotChecked(f"the reward service {reason_of(error)}") from None
                await asyncio.sleep(1)
            except (httpx.HTTPError, ValueError) as error:
                reason = reason_of(error, BATCH_SECONDS)
                raise NotChecked(f"the reward service {reason}") from None


def finding(check: ReferenceCheck) -> str:
    """Describe the unreadable references that a check has found, and why it stopped early. Return
    '' if it found none."""
    report = check.report
    sentence = report.sentence() if report.unreadable else ""
    if not check.task.done() or check.task.cancelled() or (error := check.task.exception()) is None:
        return sentence
    left = f"{report.rows - report.checked:,} of {report.rows:,}"
    stopped = (
        f"{left} references of {report.dataset} were not read by verifier "
        f"{report.verifier!r}: {error}"
    )
    return f"{sentence}; {stopped}" if sentence else stopped


def reason_of(error: Exception, seconds: float = CHECK_SECONDS) -> str:
    """Return why the reward service did not check, in words that follow `the reward service`."""
    match error:
        case httpx.ConnectError() | httpx.ConnectTimeout():
            return "is away"
        case httpx.TimeoutException():
            return f"took more than {seconds:g} s"
        case httpx.HTTPStatusError(response=response):
            return f"answered {response.status_code}"
        case httpx.HTTPError():
            return f"broke the connection ({type(error).__name__})"
    return "answered with something else than a check"


async def _done() -> None:
    """Return at once: the task of a check that was done before."""


def _key(record: DatasetRecord, use: Use) -> str:
    named: list[Any] = [record.id, use.verifier, use.params, version("headrace")]
    return xxhash.xxh3_64_hexdigest(msgspec.json.encode(named, order="deterministic"))


def _rows(reader: DatasetReader, start: int, most: int) -> list[ReferenceRow]:
    """Return references from row `start` on: at least one row, and at most BATCH_BYTES."""
    references: list[ReferenceRow] = []
    size = 0
    for row in reader.rows(range(start, min(start + most, len(reader)))):
        size += len(msgspec.json.encode([row.answer, row.columns]))
        if references and size > BATCH_BYTES:
            break
        references.append(ReferenceRow(answer=row.answer, columns=row.columns))
    return references


def _kept(path: Path) -> ReferenceReport | None:
    """Return the report of an earlier check. A damaged report counts as missing."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ReferenceReport)
    except (OSError, msgspec.MsgspecError):
        return None


def _keep(path: Path, report: ReferenceReport) -> None:
    """Write a report. If that fails, or if the dataset was deleted meanwhile, the next check reads
    the rows again."""
    if not path.parent.parent.exists():
        return
    try:
        with written_beside(path) as beside:
            beside.write_bytes(msgspec.json.encode(report))
    except OSError as error:
        log.warning("a report on references was not kept", reason=str(error))
