"""An error that may pass by the next start does not end the run: the learner starts again and
retries."""

import errno
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import torch
from huggingface_hub.errors import (
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
)

from learner import rank
from learner.distributed import Ranks
from learner.errors import PeerFailed, UnusableModel
from learner.model.loading.folders import find_source, unusable
from learner.transient_errors import passes
from services.contracts.records import RunRecord, RunState
from services.volume import Volume
from tests.unit.learner.threads import on_ranks

ALONE = Ranks(0, 1, torch.device("cpu"))


def wrapped(error: Exception) -> UnusableModel:
    """The error that a model's loader makes of a library's error."""
    with pytest.raises(UnusableModel) as raised, unusable("/models/m"):
        raise error
    return raised.value


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EIO, "Input/output error"),
        ValueError("Error while deserializing: I/O error: Input/output error (os error 5)"),
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        httpx.ConnectError("no route"),
        LocalEntryNotFoundError("an error happened while trying to locate the files on the Hub"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_model_that_cannot_be_read_now_may_be_readable_later(error: Exception) -> None:
    assert passes(wrapped(error))


def test_a_model_that_is_broken_stays_so() -> None:
    for error in (
        ValueError("bad config"),
        FileNotFoundError(errno.ENOENT, "gone"),
        PermissionError(errno.EACCES, "not yours"),
    ):
        assert not passes(wrapped(error))


def test_an_offline_hub_is_not_retried() -> None:
    error = LocalEntryNotFoundError("cannot find the snapshot folder")
    error.__cause__ = OfflineModeIsEnabled("HF_HUB_OFFLINE")
    assert not passes(wrapped(error))


def test_a_new_run_fails_at_once_if_the_hub_is_away() -> None:
    away = wrapped(LocalEntryNotFoundError("cannot find the snapshot folder"))
    assert passes(away)
    assert not passes(away, is_new=True)
    assert passes(wrapped(MemoryError()), is_new=True)

    def told(ranks: Ranks) -> tuple[bool, bool]:
        def load() -> None:
            if ranks.rank == 1:
                raise away

        with pytest.raises(UnusableModel if ranks.rank == 1 else PeerFailed) as raised:
            ranks.together(load)
        return passes(raised.value), passes(raised.value, is_new=True)

    assert on_ranks(2, told) == [(True, False)] * 2


@pytest.mark.parametrize(
    ("status", "later"), [(403, False), (404, False), (429, True), (503, True)]
)
def test_the_hubs_answer_is_final_unless_it_reports_trouble(status: int, later: bool) -> None:
    answer = httpx.Response(status, request=httpx.Request("GET", "https://hub"))
    error = LocalEntryNotFoundError("cannot find the snapshot folder")
    error.__cause__ = HfHubHTTPError("no", response=answer)  # type: ignore[arg-type]
    assert passes(wrapped(error)) is later


def test_a_folder_on_a_disk_that_fails_may_be_readable_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text("{}")

    def failing(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("services.models.folder.open_inside", failing)
    with pytest.raises(UnusableModel) as raised:
        find_source(str(tmp_path), False)
    assert passes(raised.value)


def test_all_ranks_know_that_the_error_of_one_may_be_over_later() -> None:
    def load(ranks: Ranks) -> None:
        if ranks.rank == 1:
            raise wrapped(OSError(errno.EIO, "Input/output error"))

    def told(ranks: Ranks) -> tuple[type[Exception], bool]:
        with pytest.raises(UnusableModel if ranks.rank == 1 else PeerFailed) as raised:
            ranks.together(lambda: load(ranks))
        return raised.type, passes(raised.value)

    assert on_ranks(2, told) == [(PeerFailed, True), (UnusableModel, True)]


class Ended:
    """A run's store that notes how the run ends."""

    def __init__(self, *_: object) -> None:
        self.states: list[tuple[str, str]] = []

    def set_state(self, state: str) -> None:
        """Do nothing."""

    def finish(self, state: str, reason: str) -> None:
        self.states.append((state, reason))


def test_a_run_whose_model_cannot_be_read_is_tried_three_times_and_then_fails_with_the_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, tries = Ended(), 0

    def train(*_: object) -> str:
        nonlocal tries
        tries += 1
        raise wrapped(OSError(errno.EIO, "Input/output error"))

    monkeypatch.setattr(rank, "RunStore", lambda *_: store)
    monkeypatch.setattr(rank, "train_sft", train)
    config = {"type": "sft", "model": {"source": "pretrained", "path": "m"}}
    record = RunRecord(
        id="r",
        name="r",
        pool="default",
        kind="sft",
        state=RunState.STARTING,
        config=config | {"data": {"dataset": "d"}},
        created=0.0,
    )
    connected: Any = SimpleNamespace(training=lambda run: nullcontext())
    ours = rank.PoolRank(ALONE, connected, Volume(tmp_path), threading.Event(), False)
    for _ in range(3):
        with pytest.raises(UnusableModel):
            ours.train(record)
        assert not store.states
    ours.train(record)

    assert tries == 3
    ((state, reason),) = store.states
    assert state == "failed"
    assert reason.startswith("the learner crashed 3 times after step 0, last with: model ")
