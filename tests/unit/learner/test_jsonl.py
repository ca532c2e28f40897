"""Rows of a run by step: cut back to its checkpoint, and durable before a checkpoint counts."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from learner.checkpoints.background_writer import CheckpointWriter
from learner.checkpoints.captured import capture
from learner.checkpoints.checkpoint_retention import KeepRule
from learner.optim.optimizers import Optimizers
from learner.persist import jsonl as metrics_file
from learner.persist.disk_retry import Disk
from learner.persist.jsonl import MetricsFile
from learner.state import TrainingProgress
from services.contracts.config.optimizer import AdamW
from tests.unit.learner.disks import Status
from tests.unit.learner.policies import state_of, tiny_model
from tests.unit.learner.unigrams import ALONE


def disk(root: Path) -> Disk:
    return Disk(root, Status(), threading.Event())


def test_a_run_that_goes_back_forgets_the_rows_of_later_steps_and_a_torn_one(
    tmp_path: Path,
) -> None:
    file = tmp_path / "runs/r/metrics.jsonl"
    rows = MetricsFile(tmp_path, "r", disk(tmp_path))
    rows.begin(0)
    assert file.read_text() == ""
    evaluations = [{"evaluation/step": step, "evaluation/id": f"e{step}"} for step in (1, 2)]
    for row in ({"step": 1}, evaluations[0], {"step": 2}, evaluations[1]):
        rows.add(row)
    with file.open("a") as torn:
        torn.write('{"step": 1, "tr')

    # Answers of evaluations stay, so their rows stay too.
    assert rows.begin(1) == {"e1", "e2"}
    rows.add({"step": 2, "train/grad_norm": float("inf")})

    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        {"step": 1},
        *evaluations,
        {"step": 2, "train/grad_norm": None},
    ]


@pytest.mark.parametrize(
    "line", [b"\xff\xfe\n", b"\0\0\n", b"[1]\n", b'{"step": null}\n', b"[" * 100_000 + b"\n"]
)
def test_a_damaged_line_stops_no_run(tmp_path: Path, line: bytes) -> None:
    file = tmp_path / "runs/r/metrics.jsonl"
    rows = MetricsFile(tmp_path, "r", disk(tmp_path))
    rows.begin(0)
    rows.add({"step": 1})
    with file.open("ab") as damaged:
        damaged.write(line)
    rows.add({"step": 2})

    rows.begin(2)

    assert file.read_text() == '{"step": 1}\n{"step": 2}\n'


def test_a_learner_that_wakes_after_its_successor_began_adds_no_row(tmp_path: Path) -> None:
    sleeper, successor = (MetricsFile(tmp_path, "r", disk(tmp_path)) for _ in range(2))
    sleeper.begin(0)
    sleeper.add({"step": 1})
    successor.begin(0)
    successor.add({"step": 1, "train/loss": 2.0})

    sleeper.add({"step": 2})

    file = tmp_path / "runs/r/metrics.jsonl"
    assert file.read_text() == '{"step": 1, "train/loss": 2.0}\n'


class Recorder:
    """Records the order of the calls to the store around a commit."""

    run = "r"
    committed_step = 0

    def __init__(self, happened: list[str]) -> None:
        self.happened = happened
        self.ledger = self

    def rows_after(self, entry: str) -> list[tuple[str, dict[str, str]]]:
        return []

    def call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        return method(*arguments)

    def hold(self) -> None:
        self.happened.append("written")

    def commit(self, step: int, directory: str) -> None:
        self.happened.append(f"committed {step}")

    def event(self, kind: str, data: dict[str, Any]) -> None:
        self.happened.append(kind)


def test_rows_are_durable_before_the_commit_and_its_copy_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    monkeypatch.setattr(metrics_file, "fsync", lambda path: happened.append(f"synced {path.name}"))
    loaded = tiny_model()
    state = TrainingProgress("r", 3, 3, [("a", 0)], "base")
    rows = MetricsFile(tmp_path, "r", disk(tmp_path))
    writer = CheckpointWriter(
        KeepRule(1),
        disk(tmp_path),
        Recorder(happened),  # type: ignore[arg-type]
        (rows,),
        ALONE,
    )
    rows.begin(0)
    rows.add({"step": 3})

    writer.submit(
        capture(state_of(loaded, Optimizers(loaded.model, AdamW(lr=1e-3)), progress=state))
    )
    writer.wait()
    writer.close()

    assert happened == [
        "written",
        "synced metrics.jsonl",
        "committed 3",
        "synced ledger.jsonl",
        "checkpoint",
    ]
