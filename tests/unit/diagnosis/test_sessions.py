"""Runs whose groups come from agents or users: what they wait for."""

from typing import Any

from services.contracts.why import (
    Flow,
    LiveTraffic,
    OldestTask,
)
from tests.unit.diagnosis.situations import run, said, step, worker


def test_a_run_on_live_sessions_waits_for_its_users() -> None:
    config = {
        "algorithm": {"prompts_per_step": 4},
        "rollout": {"stragglers": "wait", "max_staleness": 8},
        "data": {"source": "sessions", "reward_deadline": 60.0},
    }
    live = run(config=config)
    nobody = LiveTraffic(open=0, waiting=0, ready=0, opened=0, discarded=0)
    some = LiveTraffic(open=3, waiting=12, ready=1, opened=40, discarded=5)
    cause, words = said(run=live, traffic=nobody)
    assert (cause, "no application has opened a session" in words) == ("rollout", True)
    expected = (
        "3 sessions are open, 12 have ended and wait for a reward, 1 are ready; 5 of 40 were "
        "discarded. A reward may come 60 s after a session's end (data.reward_deadline), and is of "
        "use while no more than 8 steps are trained"
    )
    assert expected in said(run=live, traffic=some)[1]
    # Another worker would not help.
    slow = step(1.0, **{"bottleneck": "rollout", "time/waiting_for_groups": 3.0})
    cause, words = said(run=live, traffic=some, events=[slow])
    assert (cause, expected in words, "orker" in words) == ("rollout", True, False)
    stale = worker(version=6)
    assert said(run=live, traffic=some, workers=[stale])[0] == "weights"


def test_a_run_of_agents_waits_for_them_and_not_for_workers() -> None:
    config = {
        "algorithm": {"prompts_per_step": 4},
        "rollout": {"stragglers": "wait", "episode": {"type": "sessions", "idle_seconds": 300.0}},
        "data": {"source": "dataset"},
    }
    played = run(config=config)
    idle = worker(state="idle")
    cause, words = said(run=played, workers=[idle], events=[step(40)])
    assert cause == "rollout"
    assert words.endswith(
        "no agent plays: `headrace agents r1 -- COMMAND` does, or any program that leases groups "
        "(docs/agents.md)"
    )
    oldest = OldestTask(task=28, place="generating", worker="agents", lease_seconds_left=280.2)
    holding: dict[str, Any] = {"flow": Flow(held=3), "oldest": oldest, "events": [step(40)]}
    _, words = said(run=played, workers=[idle], **holding)
    assert words.endswith(
        "agents have 3 groups. One is done when each of its sessions has ended (POST "
        "/v1/sessions/SID/end); that of task 28 is lost in 280 s unless a call comes "
        "(rollout.episode.idle_seconds)"
    )
    # Groups that workers hold come first.
    assert (
        said(run=played, workers=[worker(groups_in_flight=3, scoring=3)], **holding)[0] == "reward"
    )
    assert said(run=played, workers=[worker(version=6)], events=[step(40)])[0] == "weights"
    slow = step(1.0, **{"bottleneck": "rollout", "time/waiting_for_groups": 3.0})
    words = said(run=played, workers=[idle], events=[slow])[1]
    assert "more of them at once (`headrace agents --parallel`)" in words
    assert "worker" not in words
