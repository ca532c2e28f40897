"""The installation that is measured: every process is real, and used through the REST API.

Runs are submitted, polled and cancelled like any user's. Nothing is measured here.
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from bench.runner import BenchFailed
from headrace.cli.client import Gateway
from headrace.cli.output import CliError
from services.cli.host.demo import upload_sums
from services.launch import LaunchError, Stack, UpOptions

# The log has the weight updates as JSON, whatever the user's own settings are.
LOGS = {"HEADRACE_LOG_FORMAT": "json", "HEADRACE_LOG_LEVEL": "info"}
POLL_SECONDS = 1.0
STANDSTILL_SECONDS = 240.0
"""A run without progress for this time hangs. A start of vLLM takes a minute."""


@contextmanager
def failures() -> Iterator[None]:
    """Raise BenchFailed for an error of a process or of the gateway."""
    try:
        yield
    except LaunchError as error:
        raise BenchFailed(str(error)) from error
    except CliError as error:
        problems = [f"  {key}: {message}" for key, message in error.problems]
        raise BenchFailed("\n".join([str(error), *problems])) from error


@contextmanager
def work_folder(data: Path | None) -> Iterator[Path]:
    """Yield `data`, or a folder that is deleted afterwards."""
    if data is not None:
        yield data
        return
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        yield Path(folder)


class Installation:
    """One `headrace up` in `data`, with the datasets of the demo."""

    def __init__(self, data: Path) -> None:
        self.stack = Stack(UpOptions(data=data, environment=LOGS, port=0, reward_port=0))
        self.check: Callable[[], None] = self.stack.check
        """Called during every wait. Raises when a process has ended."""
        self._stamp = f"{int(time.time()):x}"

    def __enter__(self) -> Self:
        self.stack.__enter__()
        try:
            self.api = Gateway(self.stack.gateway_url, key=self.stack.api_key)
            upload_sums(self.api)
        except BaseException:
            self.stack.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.stop()

    @property
    def data(self) -> Path:
        return self.stack.data

    def submit(self, recipe: str, name: str, config: dict[str, Any]) -> str:
        body = {"name": f"bench-{name}-{self._stamp}", "recipe": recipe, "config": config}
        return str(self.api.post("/v1/runs", json=body)["id"])

    def finish(self, run: str) -> dict[str, Any]:
        """Return the record of `run` when it has succeeded. Raise BenchFailed if it fails, or hangs
        for STANDSTILL_SECONDS."""
        return self._until(run, lambda record: record["state"] == "succeeded")

    def reach(self, run: str, step: int) -> None:
        """Return when `run` has trained `step` steps. Raise BenchFailed as `finish` does."""
        self._until(run, lambda record: record["step"] >= step)

    @contextmanager
    def running(self, recipe: str, name: str, config: dict[str, Any]) -> Iterator[str]:
        """A run for the length of the block: submitted before, cancelled and ended after it."""
        run = self.submit(recipe, name, config)
        try:
            yield run
        except Exception:
            # The next part's run would wait for this one. A run that has failed refuses (409).
            with suppress(CliError):
                self.api.post(f"/v1/runs/{run}/cancel")
            raise
        self.api.post(f"/v1/runs/{run}/cancel")
        self._until(run, lambda record: record["state"] == "cancelled")
        began = time.monotonic()
        while any(w["state"] != "idle" for w in self.api.pages("/v1/workers", "workers")):
            self.check()
            if time.monotonic() - began > STANDSTILL_SECONDS:
                raise BenchFailed(f"a worker is not idle {STANDSTILL_SECONDS:.0f} s after its run")
            time.sleep(POLL_SECONDS)

    def metrics(self, run: str) -> list[dict[str, Any]]:
        rows = self.api.pages(f"/v1/runs/{run}/metrics", "metrics")
        return [row for row in rows if "time/step" in row]

    def _until(self, run: str, ready: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        seen: tuple[str, int] | None = None
        moved = time.monotonic()
        while True:
            self.check()
            record: dict[str, Any] = self.api.get(f"/v1/runs/{run}")
            if ready(record):
                return record
            if record["state"] in ("succeeded", "failed", "cancelled"):
                raise BenchFailed(
                    f"run {record['name']} {record['state']}: {record['reason'] or 'no reason'}"
                )
            now = (record["state"], record["step"])
            if now != seen:
                seen, moved = now, time.monotonic()
            elif time.monotonic() - moved > STANDSTILL_SECONDS:
                raise BenchFailed(
                    f"run {record['name']} is {record['state']} at step {record['step']} and has "
                    f"not moved for {STANDSTILL_SECONDS:.0f} s; logs: {self.data / 'logs'}"
                )
            time.sleep(POLL_SECONDS)


def records(log: Path) -> list[dict[str, Any]]:
    """The JSON lines of a log. Other lines are headings between starts, and output of libraries."""
    lines = []
    for line in log.read_text(errors="replace").splitlines():
        with suppress(json.JSONDecodeError):
            if line.startswith("{"):
                lines.append(json.loads(line))
    return lines
