"""A run that is asked to end while its disk is full ends in order, on every rank."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from learner.checkpoints import background_writer
from learner.checkpoints.checkpoint_retention import KeepRule
from learner.checkpoints.checkpoint_writer import WrittenPart
from learner.coordinate import run_rank
from learner.coordinate.checkpoint_schedule import CheckpointSchedule
from learner.coordinate.crash_limit import CrashLimit
from learner.coordinate.first_rank import FirstRank, on_rank_0
from learner.coordinate.run_rank import RunRank
from learner.coordinate.sft_coordinator import SFTCoordinator
from learner.distributed import Ranks
from learner.environment import RunEnvironment
from learner.persist.disk_retry import CannotWrite
from learner.slices import RankPart
from learner.state import SupervisedProgress, TrainingProgress
from learner.store.commands import Command
from services.contracts.config.training import SFTTraining
from services.store import Fenced
from services.volume import Volume
from tests.unit.learner.threads import Meeting, ThreadRanks

PROGRESS = TrainingProgress("r", 1, 1, [("a", 0)], "base", supervised=SupervisedProgress([9]))


@dataclass(frozen=True)
class TalkingRanks(ThreadRanks):
    """Thread ranks that also receive rank 0's messages. Their writing threads meet elsewhere."""

    beside: Meeting = field(default_factory=lambda: Meeting(1))

    def broadcast(self, message: bytes | None) -> bytes:
        """Return rank 0's message."""
        found: bytes = self.meeting.all(self.rank, message)[0]
        return found

    def of_threads(self) -> Ranks:
        """The same ranks, for their writing threads."""
        return ThreadRanks(self.rank, self.size, self.device, meeting=self.beside)


class Store:
    """A run that a user has cancelled."""

    run, committed_step = "r", 0

    def cancelled(self) -> bool:
        return True

    def payload_bytes_free(self) -> None:
        """Unlimited."""

    def warn(self, message: str) -> None:
        """Ignore the warning."""


class First(FirstRank):
    """Rank 0 with a disk that refuses every row of its first step."""

    def next_command(self) -> Command:
        return self._ending or Command("train", 1)

    @on_rank_0
    def report(self) -> None:
        raise CannotWrite("no space for a row")


def of_rank(ranks: Ranks, root: Path, store: Any = None) -> tuple[RunEnvironment, Any]:
    """The environment and the state of a rank."""
    loaded = SimpleNamespace(model=torch.nn.Linear(1, 1), lora=None)
    state: Any = SimpleNamespace(loaded=loaded, progress=PROGRESS)
    given: Any = store or Store()
    return RunEnvironment(ranks, given, Volume(root), threading.Event()), state


def test_the_other_ranks_do_not_wait_for_a_checkpoint_that_rank_0_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_rank, "is_sharded", lambda _: True)
    monkeypatch.setattr(run_rank, "part_of", lambda _, ranks: RankPart(ranks.rank, ranks.size))
    monkeypatch.setattr(
        run_rank, "capture", lambda _, part: SimpleNamespace(progress=PROGRESS, part=part, size=1)
    )
    monkeypatch.setattr(background_writer, "write_part", lambda *_: WrittenPart({}))
    committed: list[Any] = []
    monkeypatch.setattr(background_writer, "complete", lambda *given: committed.append(given))
    meetings = Meeting(2), Meeting(2)

    def train(rank: int) -> str:
        ranks = TalkingRanks(rank, 2, torch.device("cpu"), meeting=meetings[0], beside=meetings[1])
        limit = CrashLimit(tmp_path / f"crashes-{rank}.json", 0)
        config: Any = None
        one: RunRank
        if ranks.first:
            schedule = CheckpointSchedule(every=1, last_step=9, budget=1)
            one = First(config, *of_rank(ranks, tmp_path), schedule, KeepRule(2))
        else:
            one = RunRank(config, *of_rank(ranks, tmp_path))
        try:
            while (command := one.await_command(limit)).kind == "train":
                one.checkpoint()
                one.report()
            return one.end(command, limit)
        finally:
            one.close()

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(train, range(2))) == ["cancel", "cancel"]
    assert not committed


def test_a_supervised_run_whose_checkpoint_cannot_be_written_ends_on_request(
    tmp_path: Path,
) -> None:
    config: Any = SimpleNamespace(
        training=SFTTraining(checkpoint_every=1, keep_checkpoints=1),
        validation=SimpleNamespace(patience=None, best="loss", every=9),
    )

    def full(_: Any) -> None:
        raise CannotWrite("no space for a checkpoint")

    given = of_rank(Ranks(0, 1, torch.device("cpu")), tmp_path)
    one = SFTCoordinator(config, 9, *given, None)
    one._writer._work = full
    one._writer.submit(SimpleNamespace(progress=PROGRESS))  # type: ignore[arg-type]
    one._writer._waiting.join()
    command = one.next_command()
    assert command.kind == "cancel"
    assert one.end(command, CrashLimit(tmp_path / "crashes.json", 0)) == "cancel"
    one.close()


def test_a_supervised_run_that_was_taken_over_while_it_began_leaves_its_successors_rows(
    tmp_path: Path,
) -> None:
    class TakenOver(Store):
        """A run that another learner has taken over."""

        def fenced(self, *_: Any) -> None:
            raise Fenced("r")

        def hold(self) -> None:
            raise Fenced("r")

        class runs:
            update = None

    config: Any = SimpleNamespace(
        training=SFTTraining(checkpoint_every=1, keep_checkpoints=1),
        validation=SimpleNamespace(patience=None, best="loss", every=9),
    )
    given = of_rank(Ranks(0, 1, torch.device("cpu")), tmp_path, TakenOver())
    file = tmp_path / "runs/r/metrics.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text('{"step": 7}\n')
    one = SFTCoordinator(config, 9, *given, None)
    with pytest.raises(Fenced):
        one.begin()
    one.close()
    assert file.read_text() == '{"step": 7}\n'


def test_a_supervised_run_that_ends_reports_its_last_step_even_if_it_was_short(
    tmp_path: Path,
) -> None:
    said: list[Any] = []

    class Recorded(Store):
        """A run that records its updates."""

        def fenced(self, _: Any, fields: dict[str, Any]) -> None:
            said.append(fields["step"])

        def step_done(self, step: int, *_: Any, **__: Any) -> None:
            said.append(step)

        def hold(self) -> None:
            """Succeed: no other learner has the run."""

        class runs:
            update = None

    config: Any = SimpleNamespace(
        training=SFTTraining(checkpoint_every=9, keep_checkpoints=1),
        validation=SimpleNamespace(patience=None, best="loss", every=9),
    )
    environment, state = of_rank(Ranks(0, 1, torch.device("cpu")), tmp_path, Recorded())
    (tmp_path / "runs/r").mkdir(parents=True)
    one = SFTCoordinator(config, 9, environment, state, None)
    made: list[int] = []
    one._writer._work = lambda captured: made.append(captured.progress.step)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_rank, "capture", lambda s, _: SimpleNamespace(progress=s.progress))
        for step in (1, 2, 3):
            state.progress = replace(PROGRESS, step=step)
            one.report({}, rows=1, tokens=1)
        assert one.end(Command("cancel"), CrashLimit(tmp_path / "crashes.json", 0)) == "cancel"
    one.close()
    assert made == [3]
    assert said[-1] == 3
