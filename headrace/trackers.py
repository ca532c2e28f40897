"""Experiment trackers. Each imports its library when it is opened. Keys and addresses come from
the environment of its process, never from a run.

A tracker's `log` takes rows of metrics.jsonl: rows of steps, and of evaluations, which may come
after later steps. Rows come once: `Carried` remembers them over restarts.
"""

import importlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from headrace.metric_rows import is_step, place_of
from headrace.redaction import redacted

Row = Mapping[str, Any]
PACKAGES = {
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "mlflow": "mlflow",
    "trackio": "trackio",
}
"""The package of each tracker. The extra `track` has those of the first two."""


class TrackerFailed(RuntimeError):
    """A tracker cannot be reached, or refuses; the message says why."""


@dataclass
class Carried:
    """Steps that a tracker has: the newest of training, and all of each evaluation. A run that goes
    back to an earlier step trains these steps again; a tracker keeps the values that it has."""

    step: int = -1
    evaluations: dict[str, list[int]] = field(default_factory=dict)
    """By the name of the metric that says the step."""

    def new(self, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows that were not carried, and take note of them."""
        return [row for row in rows if self._add(*place_of(row))]

    def _add(self, name: str, step: int) -> bool:
        if name == "step":
            is_new, self.step = step > self.step, max(step, self.step)
            return is_new
        steps = self.evaluations.setdefault(name, [])
        if step in steps:
            return False
        steps.append(step)
        return True


class Tracker(Protocol):
    """A service or a folder that receives the metrics of a run. Calls may raise TrackerFailed, and
    whatever the library raises."""

    place: str
    """The folder or URL that shows the metrics."""
    carried: Carried | None
    """Steps that are there already; None: the tracker does not know."""

    def log(self, rows: Sequence[Row]) -> None:
        """Add rows."""

    def close(self, state: str) -> None:
        """Write what is left. `state`: the state of a run that is over, or '' if it may go on."""


class TensorBoardFiles:
    """Event files in a folder of the run. They are written anew each time: the same steps in two
    files would draw a line that goes back."""

    carried: Carried | None

    def __init__(self, root: Path, record: Row) -> None:
        summary = _imported("tensorboard.summary", "tensorboard")
        # File systems take 255 bytes, and a character has up to four.
        folder = root / f"{record['name'][:60].replace('/', '-')}-{record['id']}"
        self.place, self.carried = str(folder), Carried()
        with self._writable():
            folder.mkdir(parents=True, exist_ok=True)
            for file in folder.glob("events.out.tfevents.*"):
                file.unlink()
            self._writer = summary.Writer(str(folder))

    def log(self, rows: Sequence[Row]) -> None:
        """See Tracker."""
        with self._writable():
            for row in rows:
                _, step = place_of(dict(row))
                for name, value in numbers(row).items():
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
            raise TrackerFailed(f"{self.place} cannot be written: {error.strerror}") from None


class WandbRun:
    """The project's run with the same id and name. It goes on if it exists. The files of an offline
    run are written anew each time: what a killed process logged last may not be in them."""

    carried: Carried | None

    def __init__(self, options: Row, record: Row, folder: Path | None = None) -> None:
        wandb = _imported("wandb", "wandb")
        for earlier in folder.glob(f"wandb/offline-run-*-{record['id']}") if folder else ():
            shutil.rmtree(earlier)
        # This process is not the one that trains: its output, code and load say nothing of the run.
        settings = wandb.Settings(
            console="off", x_disable_stats=True, save_code=False, disable_git=True, silent=True
        )
        try:
            self._run = wandb.init(
                project=options["project"],
                entity=options.get("entity"),
                tags=options.get("tags") or None,
                id=record["id"],
                name=record["name"],
                config=dict(record["config"]),
                job_type=record["kind"],
                resume="allow",
                settings=settings,
                dir=folder,
            )
        except (wandb.Error, OSError, ValueError) as error:
            raise TrackerFailed(f"wandb refuses: {error}") from None
        self.place = str(self._run.dir if self._run.offline else self._run.url)
        self.carried = Carried() if self._run.offline else self._there()
        self._defined: set[str] = set()

    def _there(self) -> Carried:
        """Return the steps on the server. The last steps of a killed process may be missing."""
        steps = {name: int(step) for name, step in self._run.summary.items() if is_step(name)}
        evaluations = {name: list(range(step + 1)) for name, step in steps.items()}
        return Carried(steps.get("step", -1), {k: v for k, v in evaluations.items() if k != "step"})

    def log(self, rows: Sequence[Row]) -> None:
        """See Tracker."""
        for row in rows:
            name, _ = place_of(dict(row))
            # Evaluations come late, and W&B's own steps only ever rise: each metric is drawn over
            # the step that its row names.
            metrics = {metric: value for metric, value in row.items() if metric != "time"}
            for metric in metrics.keys() - self._defined:
                self._run.define_metric(metric, step_metric=None if metric == name else name)
            self._defined |= metrics.keys()
            self._run.log(metrics)

    def close(self, state: str) -> None:
        """See Tracker."""
        # W&B knows finished and failed.
        self._run.finish(exit_code=int(state == "failed"))


class MLflowRun:
    """A run of the experiment with the same name, runs again by its tag `headrace.run`. Its tag
    `headrace.carried` comes with the metrics of each row."""

    carried: Carried | None

    STATES = {"succeeded": "FINISHED", "failed": "FAILED", "cancelled": "KILLED"}
    UNUSABLE = re.compile(r"[^\w./ -]")
    PARAMETERS, LONGEST = 100, 500
    """Parameters of one call, and characters of a value, that servers take."""

    def __init__(self, options: Row, record: Row) -> None:
        mlflow = _imported("mlflow", "mlflow")
        if not os.environ.get("MLFLOW_TRACKING_URI"):
            raise TrackerFailed("MLFLOW_TRACKING_URI does not name a tracking server here")
        self._entities = mlflow.entities
        self._client = client = mlflow.MlflowClient()
        try:
            experiment = client.get_experiment_by_name(options["experiment"])
            where = (
                experiment.experiment_id
                if experiment
                else client.create_experiment(options["experiment"])
            )
            wanted = f"tags.`headrace.run` = '{record['id']}'"
            runs = client.search_runs([where], wanted, max_results=1)
            run = runs[0] if runs else self._made(where, record)
            self._id = run.info.run_id
            client.update_run(self._id, status="RUNNING")
        except mlflow.MlflowException as error:
            raise TrackerFailed(f"MLflow refuses: {error}") from None
        tag = run.data.tags.get("headrace.carried")
        self.carried = Carried(**json.loads(tag)) if tag else Carried()
        self._logged = deepcopy(self.carried)
        self.place = f"{redacted(mlflow.get_tracking_uri())}, run {self._id}"

    def _made(self, experiment: str, record: Row) -> Any:
        tags = {"headrace.run": record["id"], "headrace.kind": record["kind"]}
        run = self._client.create_run(experiment, run_name=record["name"], tags=tags)
        config = [
            self._entities.Param(name, value[: self.LONGEST])
            for name, value in flat(record["config"])
        ]
        for at in range(0, len(config), self.PARAMETERS):
            self._client.log_batch(run.info.run_id, params=config[at : at + self.PARAMETERS])
        return run

    def log(self, rows: Sequence[Row]) -> None:
        """See Tracker."""
        for row in rows:
            _, step = place_of(dict(row))
            self._logged.new([dict(row)])
            at = int(1000 * (row.get("time") or 0))
            metrics = [
                self._entities.Metric(self.UNUSABLE.sub("_", name), value, at, step)
                for name, value in numbers(row).items()
            ]
            carried = self._entities.RunTag("headrace.carried", json.dumps(vars(self._logged)))
            self._client.log_batch(self._id, metrics=metrics, tags=[carried])

    def close(self, state: str) -> None:
        """See Tracker."""
        if state:
            self._client.set_terminated(self._id, self.STATES.get(state, "FINISHED"))


class TrackioRun:
    """The project's run with the name of this run and its id. It is opened for each batch, because
    only its end waits until all is written."""

    carried: Carried | None = None

    def __init__(self, options: Row, record: Row) -> None:
        self._trackio = _imported("trackio", "trackio")
        self._project, self._config = options["project"], dict(record["config"])
        self._name = f"{record['name']}-{record['id']}"
        self.place = f"project {self._project}, run {self._name}"

    def log(self, rows: Sequence[Row]) -> None:
        """See Tracker."""
        if not rows:
            return
        self._trackio.init(
            project=self._project,
            name=self._name,
            config=self._config,
            resume="allow",
            embed=False,
        )
        for row in rows:
            _, step = place_of(dict(row))
            self._trackio.log(numbers(row), step=step)
        self._trackio.finish()

    def close(self, state: str) -> None:
        """See Tracker."""


def numbers(row: Row) -> dict[str, float]:
    """Return the finite metrics of a row, without those that place it."""
    return {
        name: value
        for name, value in row.items()
        if isinstance(value, int | float)
        and math.isfinite(value)
        and name != "time"
        and not is_step(name)
    }


def flat(value: Any, path: str = "") -> list[tuple[str, str]]:
    """Return the leaves of a config with their paths."""
    if isinstance(value, Mapping) and value:
        return [
            leaf
            for key, inner in value.items()
            for leaf in flat(inner, f"{path}.{key}".lstrip("."))
        ]
    return [(path, value if isinstance(value, str) else json.dumps(value))]


def opened(name: str, options: Row, record: Row, folder: Path | None) -> Tracker:
    """Open a tracker. `folder`: the installation's folder for files of trackers. Raises
    TrackerFailed, and whatever the library raises."""
    match name:
        case "tensorboard":
            return TensorBoardFiles((folder or Path()) / "tensorboard", record)
        case "wandb":
            return WandbRun(options, record, folder)
        case "mlflow":
            return MLflowRun(options, record)
        case "trackio":
            return TrackioRun(options, record)
        case _:
            raise TrackerFailed(f"{name!r} is no tracker")


def _imported(module: str, package: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise TrackerFailed(
            f"{package} is not installed here: pip install {package}, or headrace-server[track]"
        ) from None
