"""The bench of agents, for a few sessions: real processes, a vLLM that sleeps."""

from bench.agents.run import Load, measure


def test_turns_are_measured_through_the_gateway_and_directly() -> None:
    found = measure("simulated", Load(at_once=32, part=0.3), lambda _: None)

    for side in ("sessions", "direct"):
        assert found[side]["turns"] >= 20
        assert found[side]["beyond_sampling"]["p50"] > 0
    # Redis, gateway and worker take part in a session's turn alone.
    spent = {side: found[side]["cpu_per_turn"] for side in ("sessions", "direct")}
    assert spent["sessions"]["gateway"] > spent["direct"]["gateway"]
    assert 0 < found["of_direct"] < 1.5
    assert found["of_plain"] > 0
