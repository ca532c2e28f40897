"""Experiment trackers for a run's metrics. Each tracker imports its library when it is chosen.

A tracker's `log` takes a row of metrics.jsonl: the row of a step, or of an evaluation, which may
come after later steps.
"""

import importlib
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from services.cli.client import PATIENCE, Away, Gateway
from services.cli.output import CliError
from services.contracts.metric_rows import by_set, is_step, place_of
from services.contracts.records import RunState

EVERY = 5.0
"""Seconds between two looks."""
LATE = 200
"""Rows of an evaluation come after those of steps that were trained meanwhile: so far back is
looked again each time, and at the end from the beginning."""
Row = dict[str, Any]


class Tracker(Protocol):
    """A service or a folder that receives the metrics of a run."""

    name: str
    place: str
    """The folder or URL that shows the metrics."""

    def log(self, row: dict[str, Any]) -> None:
        """Add a row."""

    def close(self, state: str) -> None:
        """Write the rows that are left. `state`: the state of a run that is over, or '' if it may
        continue."""


class TensorBoard:
    """Writes event files into a folder of the run, from the first row on."""

    name = "tensorboard"

    def __init__(self, root: Path, record: dict[str, Any]) -> None:
        """Raises CliError if tensorboard is not installed, or the folder cannot be written."""
        summary = _imported("tensorboard.summary", "tensorboard")
        # File systems take 255 bytes, and a character has up to four.
        folder = root / f"{record['name'][:60].replace('/', '-')}-{record['id']}"
        self.place = str(folder)
        with self._writable():
            folder.mkdir(parents=True, exist_ok=True)
            # It all comes once more, and the same steps in two files make a line go back.
            for file in folder.glob("events.out.tfevents.*"):
                file.unlink()
            self._writer = summary.Writer(str(folder))

    def log(self, row: dict[str, Any]) -> None:
        """See Tracker."""
        _, step = place_of(row)
        with self._writable():
            for name, value in row.items():
                if name != "time" and not is_step(name) and _number(value):
                    self._writer.add_scalar(name, value, step=step, wall_time=row.get("time"))
            self._writer.flush()

    def close(self, state: str) -> None:
        """See Tracker."""
        with self._writable():
            self._writer.close()

    @contextmanager
    def _writable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CliError(f"{self.place} cannot be written: {error.strerror}") from None


class WeightsAndBiases:
    """Logs to the project's run with the same id and name. Continues that run if it exists."""

    name = "wandb"

    def __init__(self, project: str, record: dict[str, Any]) -> None:
        """Raises CliError if wandb is not installed, or refuses."""
        wandb = _imported("wandb", "wandb")
        # This process is not the one that trains: its output, code and load say nothing of the run.
        settings = wandb.Settings(
            console="off", x_disable_stats=True, save_code=False, disable_git=True, silent=True
        )
        try:
            self._run = wandb.init(
                project=project,
                id=record["id"],
                name=record["name"],
                config=record["config"],
                job_type=record["kind"],
                resume="allow",
                settings=settings,
            )
        except (wandb.Error, OSError, ValueError) as error:
            raise CliError(f"wandb refuses: {error}") from None
        self.place = str(self._run.dir if self._run.offline else self._run.url)
        self._defined: set[str] = set()
        self._there: dict[str, int] = {}
        """The newest step that was there before, by the metric that says it."""

    def log(self, row: dict[str, Any]) -> None:
        """See Tracker."""
        name, step = place_of(row)
        if name not in self._there:
            self._there[name] = int(self._run.summary.get(name, -1))
        if step <= self._there[name]:
            return
        # Evaluations come late, and W&B's own steps only ever rise: each metric is drawn over the
        # step that its row names.
        metrics = {metric: value for metric, value in row.items() if metric != "time"}
        for metric in metrics.keys() - self._defined:
            self._run.define_metric(metric, step_metric=None if metric == name else name)
        self._defined |= metrics.keys()
        self._run.log(metrics)

    def close(self, state: str) -> None:
        """See Tracker."""
        # W&B knows finished and failed.
        self._run.finish(exit_code=int(state == "failed"))


def _imported(module: str, package: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise CliError(
            f"{package} is not installed here: pip install {package}, or headrace[track]"
        ) from None


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def carry(api: Gateway, run: str, trackers: Sequence[Tracker]) -> tuple[int, RunState]:
    """Log each row of `run` once to each tracker, until the run is over. Returns the number of rows
    and the run's state. Raises CliError if the gateway stays away."""
    seen: set[tuple[str, int]] = set()
    newest, heard = -1, time.monotonic()
    while True:
        try:
            state = RunState(api.get(f"/v1/runs/{run}")["state"])
            after = -1 if state.final else newest - LATE
            path = f"/v1/runs/{run}/metrics"
            for row in api.pages(path, "metrics", after_step=max(after, -1)):
                row = by_set(row)
                if (place := place_of(row)) not in seen:
                    seen.add(place)
                    newest = max(newest, place[1])
                    for tracker in trackers:
                        tracker.log(row)
            heard = time.monotonic()
            if state.final:
                return len(seen), state
        except Away:
            if time.monotonic() - heard > PATIENCE:
                raise
        time.sleep(EVERY)
