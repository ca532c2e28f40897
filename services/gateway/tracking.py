"""Carry the metrics of runs to the trackers that their configs name.

A child process carries one run to one tracker (`python -m services.tracking`). The folder
`tracking/open/RUN` exists while a tracker of the run lacks metrics. After a restart it says what is
left, and which rows were carried. If several gateways share a volume, one of them carries. A
tracker that fails is tried again, ever more rarely. Its first failure is a warning among the run's
events, and so is a failure with another reason.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from redis.exceptions import RedisError

from headrace.trackers import PACKAGES
from services.contracts.config import RLConfig, SFTConfig
from services.contracts.records import RunRecord
from services.gateway.settings import GatewaySettings
from services.runtime.children import signal_child
from services.runtime.file_lock import try_lock
from services.runtime.logs import get_logger
from services.runtime.tasks import end
from services.store import Store
from services.tracking.job import TrackingJob
from services.volume import Volume
from services.volume.run_files import METRICS

log = get_logger(__name__)

LOOK_SECONDS = 5.0
SILENT_SECONDS = 300.0
"""A child that does not finish a look within this time hangs."""
FIRST_WAIT, LONGEST_WAIT = 5.0, 600.0
"""Seconds until a tracker that failed is tried again. They double."""
MOST = 16
"""Trackers that are carried at once. Others wait for their turn."""
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
ENVIRONMENT = (
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR"),
    *("PYTHONPATH", "PYTHONSAFEPATH", "LD_LIBRARY_PATH"),
    *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *PROXIES,
    *map(str.upper, PROXIES),
)
"""Variables of the gateway that the process of each tracker gets. Others may hold secrets."""
OWN_VARIABLES = {
    "tensorboard": (),
    "wandb": ("WANDB_", "NETRC"),
    "mlflow": ("MLFLOW_", "DATABRICKS_"),
    "trackio": ("TRACKIO_", "HF_"),
}
"""How the names of the further variables begin that each tracker's process gets."""


def refused_trackers(
    config: RLConfig | SFTConfig, settings: GatewaySettings
) -> list[tuple[str, str]]:
    """Return the trackers of a config that this installation does not carry, each with the way
    out."""
    problems = []
    for name in config.tracking.chosen:
        if name not in settings.allowed_trackers:
            listed = ",".join([*sorted(settings.allowed_trackers), name])
            text = (
                "is not carried by this installation: its operator allows it with "
                f"HEADRACE_TRACKERS={listed}"
            )
            problems.append((f"tracking.{name}", text))
        elif find_spec(PACKAGES[name]) is None:
            text = f"needs the package {PACKAGES[name]} where the gateway runs: pip install "
            problems.append((f"tracking.{name}", f"{text}{PACKAGES[name]}"))
    return problems


class TrackerCarriers:
    """Carries runs to their trackers."""

    def __init__(self, store: Store, volume: Volume) -> None:
        self._store = store
        self._volume = volume
        self._root = volume.path("tracking")
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        """By run and tracker."""
        self._shown: dict[tuple[str, str], dict[str, str]] = {}
        """The place that an event of the run has named last."""
        self._slots = asyncio.Semaphore(MOST)

    async def begin(self, record: RunRecord) -> None:
        """Note that a submitted run is to be carried."""
        for name in chosen(record.config):
            path = self._root / "open" / record.id / f"{name}.open"
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            except OSError as error:
                words = f"tracker {name} gets no metrics of this run: {error}"
                await self._store.events.add(record.id, "warning", {"message": words})

    async def keep_carrying(self) -> None:
        """Carry open runs until cancelled."""
        lock: int | None = None
        try:
            while True:
                if lock is None and (self._root / "open").is_dir():
                    lock = self._locked()
                if lock is not None:
                    self._start_open()
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            await end(self._tasks.values())
            if lock is not None:
                os.close(lock)

    def _locked(self) -> int | None:
        """Return the open lock file, or None while another gateway of this volume carries."""
        descriptor = os.open(self._root / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        if try_lock(descriptor):
            return descriptor
        os.close(descriptor)
        return None

    def _start_open(self) -> None:
        self._tasks = {key: task for key, task in self._tasks.items() if not task.done()}
        for path in sorted((self._root / "open").glob("*/*.open")):
            key = path.parent.name, path.stem
            if key not in self._tasks:
                self._tasks[key] = asyncio.create_task(self._carry(*key))

    async def _carry(self, run: str, tracker: str) -> None:
        """Carry a run to a tracker until that has everything."""
        folder = self._root / "open" / run
        wait, reason = FIRST_WAIT, ""
        while True:
            try:
                await self._has_metrics(run)
                async with self._slots:
                    failure = await self._attempt(run, tracker, folder)
                if not failure:
                    break
                if failure != reason:
                    words = f"tracker {tracker}: {failure}; it is tried again, and misses no step"
                    log.warning("a tracker fails", run=run, tracker=tracker, reason=failure)
                    await self._store.events.add(run, "warning", {"message": words})
                    reason = failure
            except (RedisError, OSError) as error:
                log.warning("a tracker waits", run=run, tracker=tracker, reason=str(error))
            await asyncio.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)
        (folder / f"{tracker}.open").unlink(missing_ok=True)
        self._shown.pop((run, tracker), None)
        if not list(folder.glob("*.open")):
            shutil.rmtree(folder, ignore_errors=True)

    async def _has_metrics(self, run: str) -> None:
        """Wait until the run has metrics, or is over without. A queued run needs no process."""
        while not self._metrics(run).is_file():
            record = await self._store.runs.get(run)
            if record is None or record.state.final:
                return
            await asyncio.sleep(LOOK_SECONDS)

    def _metrics(self, run: str) -> Path:
        return self._volume.path(f"runs/{run}/{METRICS}")

    async def _attempt(self, run: str, tracker: str, folder: Path) -> str:
        """Carry a run in a child process until it is over. Return why that failed, or '' once
        nothing is left to carry."""
        record = await self._store.runs.get(run)
        options = chosen(record.config).get(tracker) if record else None
        if record is None or options is None or not self._metrics(run).is_file():
            return ""
        about = {"id": record.id, "name": record.name, "kind": record.kind, "config": record.config}
        files = [self._metrics(run), self._root, folder / f"{tracker}.json"]
        job = TrackingJob(tracker, options, about, *map(str, files))
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "services.tracking"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            # Libraries may print keys and addresses.
            stderr=asyncio.subprocess.DEVNULL,
            env=homes(self._root) | environment_of(tracker, os.environ),
        )
        try:
            return await self._follow(child, job)
        finally:
            signal_child(child, signal.SIGKILL)
            await child.wait()

    async def _follow(self, child: asyncio.subprocess.Process, job: TrackingJob) -> str:
        """Read what the child answers until it ends. Return why it failed, or ''."""
        assert child.stdin is not None
        assert child.stdout is not None
        run, is_over = str(job.record["id"]), False
        child.stdin.write(msgspec.json.encode(job) + b"\n")
        while True:
            try:
                line = await asyncio.wait_for(child.stdout.readline(), SILENT_SECONDS)
            except TimeoutError:
                return f"it took no metrics for {SILENT_SECONDS:.0f} s"
            if not line:
                code = await child.wait()
                return f"its process ended with {code}" if code else ""
            answer = json.loads(line)
            if failure := answer.get("failed"):
                return str(failure)
            shown = {"tracker": job.tracker, "place": answer["place"]}
            if self._shown.get((run, job.tracker)) != shown:
                self._shown[run, job.tracker] = shown
                await self._store.events.add(run, "tracker", shown)
            record = await self._store.runs.get(run)
            if record is None:
                return ""
            if record.state.final and not is_over:
                is_over = True
                with contextlib.suppress(ConnectionError):
                    child.stdin.write(f"{record.state}\n".encode())


def chosen(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the options of the trackers that a stored config names. A config from before there
    were trackers names none."""
    tracking = config.get("tracking") or {}
    return {name: options for name, options in tracking.items() if options is not None}


def environment_of(tracker: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a tracker's process inherits: neither the gateway's own settings
    nor the keys of another tracker."""
    return {
        name: value
        for name, value in inherited.items()
        # Compose sets variables that nobody gave a value to the empty text.
        if value and (name in ENVIRONMENT or name.startswith(OWN_VARIABLES[tracker]))
    }


def homes(folder: Path) -> dict[str, str]:
    """Return variables that place the files of libraries, unless the operator has set them."""
    kinds = ("CACHE", "CONFIG", "DATA", "ARTIFACT")
    wandb = {f"WANDB_{kind}_DIR": str(folder / "wandb" / kind.lower()) for kind in kinds}
    return {"TRACKIO_DIR": str(folder / "trackio"), "WANDB_SILENT": "true", **wandb}
