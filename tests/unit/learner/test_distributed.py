"""What the ranks of one start have in common, and those of an earlier start do not; what one that
cannot go on says to the others."""

import pytest

from learner.distributed import Ranks, attempt
from learner.errors import PeerFailed, RunCannotGoOn
from tests.unit.learner.threads import on_ranks


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "0"}, "0"),
        ({"LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "3"}, "3"),
        # Two ranks on two hosts: each host's torchrun counts for itself.
        ({"LOCAL_WORLD_SIZE": "1", "TORCHELASTIC_RESTART_COUNT": "3"}, "0"),
        # Not started by torchrun.
        ({}, "0"),
    ],
)
def test_a_start_differs_from_earlier_ones_where_all_ranks_agree_on_it(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], told: str
) -> None:
    for name in ("LOCAL_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert attempt(size=2) == told


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
