"""Figures of the bench of agents."""

import pytest

from bench.agents.players import Played, Taken
from bench.agents.run import TOKEN_SECONDS, WARNING, Counted, compared, figures, text


def test_only_turns_that_end_between_two_counts_are_counted() -> None:
    tokens, beyond = 10, 0.25
    seconds = tokens * TOKEN_SECONDS + beyond
    played = Played([Taken(ended, seconds, tokens) for ended in range(100)])
    before = {"gateway": 1.0, "rollout-0": 2.0, "vLLM": 1.0, "client": 5.0}
    first = Counted(9.5, before, 1000.0, 100.0, 40.0)
    last = Counted(59.5, {"gateway": 2.0, "vLLM": 6.0, "client": 15.0}, 3000.0, 1600.0, 540.0)

    found = figures(played, first, last)

    assert (found["turns"], found["turns_per_second"]) == (50, 1.0)
    assert found["tokens_per_second"] == 10.0
    assert found["beyond_sampling"] == pytest.approx({"p50": beyond, "p90": beyond, "p99": beyond})
    assert found["hit_rate"] == 0.75
    assert found["cpu_per_turn"] == {"gateway": 0.02, "vLLM": 0.1, "client": 0.2}
    assert found["client_share"] == 0.2
    assert found["cpu_per_token"] == 0.01


@pytest.mark.parametrize("share", [0.1, 0.9])
def test_sides_are_compared_and_a_busy_client_is_said(share: float) -> None:
    def side(scale: float) -> dict[str, object]:
        return {
            "tokens_per_second": 100 * scale,
            "turns_per_second": 1.0,
            "hit_rate": 0.8 * scale,
            "beyond_sampling": {"p50": 0.01 / scale, "p90": 0.02, "p99": 0.03},
            "cpu_per_token": 0.0,
            "cpu_per_turn": {},
            "client_share": share * scale,
        }

    plain = {"tokens_per_second": 200.0, "cpu_per_token": 0.0}
    found = compared({"sessions": side(0.5), "direct": side(1.0)}, plain)
    report = text({"parts": {"simulated": found}})

    assert found["added"] == {"p50": 0.01, "p90": 0.0, "p99": 0.0}
    assert (found["hit_rate"], found["of_direct"], found["of_plain"]) == (0.5, 0.5, 0.25)
    assert "10.0 / 0.0 / 0.0" in report
    assert (WARNING in report) == (share == 0.9)
