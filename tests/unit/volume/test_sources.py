"""From which host each host fetches which part of a file."""

from collections import Counter

from services.volume.sources import (
    CHILDREN,
    GATEWAY,
    MOST_WAITS,
    PER_SOURCE,
    Ask,
    FetchPlan,
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


def test_a_failed_source_is_followed_by_the_host_above_then_gateway_then_others() -> None:
    for own in HOSTS:
        sources = sources_of(NAME, 3, own, HOSTS)
        assert sorted(sources) == sorted([GATEWAY, *(host for host in HOSTS if host != own)])
        above = sources[: sources.index(GATEWAY)]
        assert sources_of(NAME, 3, above[0], HOSTS)[: len(above) - 1] == above[1:] if above else own


def test_a_host_that_serves_no_other_fetches_from_the_others() -> None:
    sources = Counter(sources_of(NAME, part, "", HOSTS)[0] for part in range(400))
    assert set(sources) == set(HOSTS)
    assert sources_of(NAME, 0, "", []) == [GATEWAY]


def asks(plan: FetchPlan) -> list[Ask]:
    """Return all requests that a plan makes at once."""
    found = []
    while (ask := plan.next()) is not None:
        found.append(ask)
    return found


def test_requests_in_flight_are_for_different_parts_and_few_go_to_one_source() -> None:
    alone = asks(FetchPlan(NAME, range(9), "", []))
    assert alone == [Ask(GATEWAY, 0), Ask(GATEWAY, 1)]
    found = asks(FetchPlan(NAME, range(200), HOSTS[0], HOSTS))
    assert len(found) == len({ask.part for ask in found})
    of_source = Counter(ask.source for ask in found)
    assert of_source.pop(GATEWAY) == 1
    assert set(of_source.values()) == {PER_SOURCE}


def test_hosts_that_help_each_other_all_get_the_file_and_the_gateway_sends_it_once() -> None:
    plans = {own: FetchPlan(NAME, range(40), own, HOSTS) for own in HOSTS}
    have: dict[str, set[int]] = {own: set() for own in HOSTS}
    sent: Counter[str] = Counter()
    for _ in range(40):
        for own, plan in plans.items():
            for ask in asks(plan):
                if ask.source == GATEWAY or ask.part in have[ask.source]:
                    sent[ask.source] += 1
                    have[own].add(ask.part)
                    plan.done(ask)
                else:
                    plan.not_yet(ask)
    assert all(plan.finished for plan in plans.values())
    assert sent[GATEWAY] == 40
    assert sent.total() == 40 * len(HOSTS)


def test_a_faulty_source_is_avoided_for_all_parts() -> None:
    plan = FetchPlan(NAME, range(12), "", HOSTS[:1])
    first = plan.next()
    assert first == Ask(HOSTS[0], 0)
    plan.failed(first)
    asked = []
    while not plan.finished:
        for ask in asks(plan):
            asked.append(ask.source)
            plan.done(ask)
    assert asked == [GATEWAY] * 12


def test_an_empty_source_is_asked_only_a_few_times() -> None:
    plan = FetchPlan(NAME, [0], "", HOSTS[:1])
    asked = []
    while (ask := plan.next()) is not None and ask.source != GATEWAY:
        asked.append(ask.source)
        plan.not_yet(ask)
    assert asked == [HOSTS[0]] * MOST_WAITS


def test_a_part_that_no_source_gives_counts_its_rounds() -> None:
    plan = FetchPlan(NAME, [0], "", HOSTS[:2])
    rounds = []
    for _ in range(5):
        ask = plan.next()
        assert ask is not None
        rounds.append((ask.source == GATEWAY, plan.failed(ask)))
    # Each host once, then the gateway alone: a round ends at the end of the list of sources.
    assert [gateway for gateway, _ in rounds].count(False) == 2
    assert rounds[-1][1] - rounds[-2][1] == 1
