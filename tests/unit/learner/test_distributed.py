"""What the ranks of one start have in common, and those of an earlier start do not."""

import pytest

from learner.distributed import attempt


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
def test_a_start_is_told_from_earlier_ones_where_all_ranks_agree_on_it(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], told: str
) -> None:
    for name in ("LOCAL_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert attempt(size=2) == told
