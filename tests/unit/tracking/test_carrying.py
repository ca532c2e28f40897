"""A tracker gets each row once, whatever happens to the file or the process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import ValidationError

from headrace.trackers import PACKAGES, Carried, flat, numbers
from services.contracts.config import ConfigError, parse_config
from services.gateway.settings import GatewaySettings
from services.gateway.tracking import OWN_VARIABLES, chosen, environment_of, refused_trackers
from services.tracking import __main__ as module
from services.tracking.__main__ import Lines, carry, new_rows, without_secrets
from services.tracking.job import TrackingJob
from services.volume.metric_lines import MetricLines

RAW: dict[str, Any] = {
    "model": {"path": "small"},
    "data": {"dataset": "sums"},
    "rewards": [{"verifier": "math"}],
}


def steps(*numbers: int, value: float = 1.0) -> list[dict[str, Any]]:
    return [{"step": number, "reward/mean": value} for number in numbers]


def evaluation(step: int) -> dict[str, Any]:
    return {"evaluation/step": step, "evaluation/name": "test", "evaluation/accuracy": 0.5}


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


class Shelf:
    """A tracker in memory, which may be away."""

    place = "here"

    def __init__(self, carried: Carried | None = None) -> None:
        self.carried, self.rows, self.state = carried, list[dict[str, Any]](), ""
        self.is_away = False

    def log(self, rows: Any) -> None:
        if self.is_away:
            raise ConnectionError("away")
        self.rows += rows

    def close(self, state: str) -> None:
        self.state = state


@pytest.fixture
def job(tmp_path: Path) -> TrackingJob:
    files = [str(tmp_path / name) for name in ("metrics.jsonl", "", "carried.json")]
    return TrackingJob("shelf", {}, {"id": "r"}, *files)


def run_once(job: TrackingJob, shelf: Shelf, state: str = "succeeded") -> None:
    """Carry what is there, and then what came until the run was over."""
    reader, writer = os.pipe()
    os.write(writer, f"{state}\n".encode())
    os.close(writer)
    try:
        for _ in carry(job, shelf, Lines(reader)):
            pass
    finally:
        os.close(reader)


def test_each_row_is_carried_once_over_restarts(job: TrackingJob) -> None:
    metrics = Path(job.metrics)
    write(metrics, [*steps(1, 2), evaluation(0)])
    shelf = Shelf()
    run_once(job, shelf)
    write(metrics, [*steps(1, 2), evaluation(0), *steps(3), evaluation(2)])
    run_once(job, shelf, "failed")

    named = [row.get("step", row.get("evaluation/test/step")) for row in shelf.rows]
    assert named == [1, 2, 0, 3, 2]
    assert shelf.rows[2]["evaluation/test/accuracy"] == 0.5
    assert shelf.state == "failed"


def test_a_run_that_went_back_is_carried_on_from_the_newest_step_that_the_tracker_has(
    job: TrackingJob,
) -> None:
    metrics, lines = Path(job.metrics), MetricLines()
    carried = Carried()
    write(metrics, steps(1, 2, 3))
    assert len(carried.new(new_rows(metrics, lines))) == 3

    write(metrics, [*steps(1), *steps(2, 3, 4, value=2.0)])

    assert carried.new(new_rows(metrics, lines)) == steps(4, value=2.0)
    assert carried.new(new_rows(metrics, lines)) == []


def test_rows_that_a_tracker_did_not_take_come_again(job: TrackingJob) -> None:
    write(Path(job.metrics), steps(1, 2))
    shelf = Shelf()
    shelf.is_away = True
    with pytest.raises(ConnectionError):
        run_once(job, shelf)
    shelf.is_away = False
    run_once(job, shelf)
    assert shelf.rows == steps(1, 2)


def test_a_tracker_that_fails_has_no_batch_twice(
    job: TrackingJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(Shelf):
        def log(self, rows: Any) -> None:
            self.is_away = bool(self.rows)
            super().log(rows)

    monkeypatch.setattr(module, "BATCH", 2)
    write(Path(job.metrics), steps(1, 2, 3))
    full, shelf = Full(), Shelf()
    with pytest.raises(ConnectionError):
        run_once(job, full)
    run_once(job, shelf)
    assert (full.rows, shelf.rows) == (steps(1, 2), steps(3))


def test_a_tracker_that_knows_what_it_has_gets_what_it_lacks(job: TrackingJob) -> None:
    write(Path(job.metrics), steps(1, 2, 3))
    Path(job.carried).write_text(json.dumps({"step": 3, "evaluations": {}}))
    shelf = Shelf(Carried(1))
    run_once(job, shelf)
    assert shelf.rows == steps(2, 3)


def test_a_run_without_metrics_ends_in_the_tracker_too(job: TrackingJob) -> None:
    shelf = Shelf()
    run_once(job, shelf, "cancelled")
    assert (shelf.rows, shelf.state) == ([], "cancelled")


def test_what_a_library_prints_is_no_answer(job: TrackingJob, tmp_path: Path) -> None:
    """Also what its own processes print, which inherit the descriptor."""
    write(Path(job.metrics), steps(1))
    (tmp_path / "trackio.py").write_text(
        "import os\n"
        "def init(**_):\n"
        "    print('syncing')\n"
        "    os.system('echo uploading')\n"
        "def log(*_, **__): pass\n"
        "def finish(): pass\n"
    )
    record = {"id": "r", "name": "n", "config": {}}
    asked = msgspec.structs.replace(job, tracker="trackio", options={"project": "p"}, record=record)
    done = subprocess.run(
        [sys.executable, "-m", "services.tracking"],
        input=msgspec.json.encode(asked) + b"\nsucceeded\n",
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        check=True,
    )
    answers = {line.decode() for line in done.stdout.splitlines()}
    assert answers == {'{"place": "project p, run n-r"}'}
    assert done.stderr.split() == [b"syncing", b"uploading"]


def test_no_message_has_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:pass@host")
    text = without_secrets("key 0123456789abcdef at http://me:pass@host/api is refused")
    assert text == "key … at …/api is refused"


def test_only_finite_numbers_are_metrics() -> None:
    row = {"step": 1, "time": 2.0, "a": 0.5, "b": None, "c": float("nan"), "d": "word", "e": 3}
    assert numbers(row) == {"a": 0.5, "e": 3}
    assert flat({"a": {"b": 1, "c": []}, "d": "x"}) == [("a.b", "1"), ("a.c", "[]"), ("d", "x")]


def test_a_tracker_that_the_operator_does_not_allow_is_refused_with_the_way_out() -> None:
    config = parse_config(RAW | {"tracking": {"wandb": {"project": "p"}, "tensorboard": {}}})
    assert refused_trackers(config, GatewaySettings()) == [
        (
            "tracking.wandb",
            "is not carried by this installation: its operator allows it with "
            "HEADRACE_TRACKERS=tensorboard,wandb",
        )
    ]
    assert refused_trackers(config, GatewaySettings(trackers="tensorboard, wandb")) == []
    assert refused_trackers(parse_config(RAW), GatewaySettings(trackers="")) == []
    with pytest.raises(ValidationError, match="'wandbb' is no tracker: known are tensorboard"):
        GatewaySettings(trackers="wandbb")


def test_a_config_names_trackers_and_no_places_or_keys() -> None:
    config = parse_config(RAW | {"tracking": {"tensorboard": {}}})
    assert chosen(config.model_dump(mode="json")) == {"tensorboard": {}}
    assert chosen(parse_config(RAW).model_dump(mode="json")) == {}
    assert chosen({"model": {}}) == {}
    switched = parse_config(RAW | {"tracking": {"tensorboard": True, "wandb": False}})
    assert chosen(switched.model_dump(mode="json")) == {"tensorboard": {}}
    for wrong in ({"folder": "/etc"}, {"wandb": {"api_key": "k"}}, {"wandb": {"project": "a/b"}}):
        with pytest.raises(ConfigError):
            parse_config(RAW | {"tracking": wrong})


def test_the_process_of_a_tracker_inherits_its_own_variables_and_no_secret_of_others() -> None:
    common = {"PATH": "/bin", "HOME": "/root", "https_proxy": "p:1", "SSL_CERT_FILE": "/ca.pem"}
    own = {"wandb": "WANDB_API_KEY", "mlflow": "MLFLOW_TRACKING_URI", "trackio": "HF_TOKEN"}
    secrets = {"HEADRACE_REDIS_URL": "redis://:pw@r", "HEADRACE_API_KEY": "k", "AWS_X": "k"}
    gateway = common | dict.fromkeys(own.values(), "k") | secrets | {"WANDB_BASE_URL": ""}

    assert OWN_VARIABLES.keys() == PACKAGES.keys()
    for tracker in PACKAGES:
        mine = {own[tracker]: "k"} if tracker in own else {}
        assert environment_of(tracker, gateway) == common | mine
