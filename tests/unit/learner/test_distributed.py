"""A rank that cannot continue tells the other ranks why."""

import pytest

from learner.distributed import Ranks
from learner.errors import PeerFailed, RunCannotGoOn
from services.store import Fenced
from tests.unit.learner.threads import on_ranks


def test_all_ranks_know_why_one_of_them_cannot_go_on() -> None:
    def prepare(ranks: Ranks) -> None:
        if ranks.rank == 1:
            raise RunCannotGoOn("rank 1 was killed ten times")

    def told(ranks: Ranks) -> tuple[type[RunCannotGoOn], str]:
        with pytest.raises(RunCannotGoOn) as raised:
            ranks.together(lambda: prepare(ranks))
        return raised.type, str(raised.value)

    why = "rank 1 was killed ten times"
    assert on_ranks(3, told) == [(PeerFailed, why), (RunCannotGoOn, why), (PeerFailed, why)]


def test_no_rank_waits_for_a_rank_that_was_fenced() -> None:
    def prepare(ranks: Ranks) -> None:
        if ranks.first:
            raise Fenced("r")

    def told(ranks: Ranks) -> type[Exception]:
        with pytest.raises((Fenced, PeerFailed)) as raised:
            ranks.together(lambda: prepare(ranks))
        return raised.type

    assert on_ranks(3, told) == [Fenced, PeerFailed, PeerFailed]
