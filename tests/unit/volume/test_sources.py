"""Which host fetches which part of a file from whom."""

from collections import Counter

from services.volume.sources import (
    CHILDREN,
    GATEWAY,
    MOST_WAITS,
    PER_SOURCE,
    Outcome,
    Plan,
    sources_of,
)

NAME = "runs/r/weights/v000001-ab.safetensors"
HOSTS = [f"http://10.0.0.{n}:8004" for n in range(8)]


def test_one_host_fetches_a_part_from_the_gateway_and_each_host_passes_it_to_two_at_most() -> None:
    for part in range(20):
        first = Counter(sources_of(NAME, part, own, HOSTS)[0] for own in HOSTS)
        assert first.pop(GATEWAY) == 1
        assert max(first.values()) <= CHILDREN
        assert first.total() == len(HOSTS) - 1


def test_over_all_parts_every_host_sends_about_as_much_as_it_gets() -> None:
    parts = 400
    first = Counter(sources_of(NAME, part, own, HOSTS)[0] for part in range(parts) for own in HOSTS)
    assert first.pop(GATEWAY) == parts
    assert all(0.6 * parts < sent < 1.2 * parts for sent in first.values())


def test_whoever_fails_is_followed_by_the_host_above_it_then_the_gateway_then_the_others() -> None:
    for own in HOSTS:
        sources = sources_of(NAME, 3, own, HOSTS)
        assert sorted(sources) == sorted([GATEWAY, *(host for host in HOSTS if host != own)])
        above = sources[: sources.index(GATEWAY)]
        assert sources_of(NAME, 3, above[0], HOSTS)[: len(above) - 1] == above[1:] if above else own


def test_a_host_that_serves_nobody_fetches_from_the_others() -> None:
    sources = Counter(sources_of(NAME, part, "", HOSTS)[0] for part in range(400))
    assert set(sources) == set(HOSTS)
    assert sources_of(NAME, 0, "", []) == [GATEWAY]


def drained(plan: Plan) -> list[tuple[int, str]]:
    """What a plan asks for at once."""
    asks = []
    while (ask := plan.next()) is not None:
        asks.append(ask)
    return asks


def test_few_requests_go_to_one_source_and_those_parts_first_that_others_wait_for() -> None:
    assert len(drained(Plan.of(NAME, range(9), "", []))) == PER_SOURCE
    own = HOSTS[0]
    roots = [part for part in range(40) if sources_of(NAME, part, own, HOSTS)[0] == GATEWAY]
    asks = drained(Plan.of(NAME, range(40), own, HOSTS))
    assert [part for part, source in asks if source == GATEWAY] == roots[:PER_SOURCE]
    assert max(Counter(source for _, source in asks).values()) == PER_SOURCE


def test_a_faulty_source_is_not_asked_again_for_any_part() -> None:
    plan = Plan.of(NAME, range(12), "", HOSTS[:1])
    for part, source in drained(plan):
        assert source == HOSTS[0]
        plan.failed(part, Outcome.FAULTY)
    asked = []
    while not plan.finished:
        for part, source in drained(plan):
            asked.append(source)
            plan.done(part)
    assert asked == [GATEWAY] * 12


def test_a_source_that_has_a_part_not_yet_is_asked_again_a_few_times() -> None:
    plan = Plan.of(NAME, [0], "", HOSTS[:1])
    asked = []
    while (ask := plan.next()) is not None and ask[1] != GATEWAY:
        asked.append(ask[1])
        plan.failed(ask[0], Outcome.NOT_YET)
    assert asked == [HOSTS[0]] * MOST_WAITS


def test_a_part_that_no_source_gives_counts_its_rounds() -> None:
    plan = Plan.of(NAME, [0], "", HOSTS[:2])
    rounds = []
    for _ in range(4):
        ask = plan.next()
        assert ask is not None
        rounds.append(plan.failed(ask[0], Outcome.FAULTY))
    # Both hosts and the gateway; from then on the gateway alone.
    assert rounds == [0, 0, 1, 2] or rounds == [0, 0, 0, 1]
