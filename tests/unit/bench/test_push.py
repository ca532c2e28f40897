"""The benchmark of weight distribution: its links and its synthetic weights."""

import numpy as np
import pytest

from bench.simulated.links import LATENCY, Links, fetched
from bench.simulated.versions import TENSOR, step, weights
from services.contracts.weights import SMALLEST_PART
from services.volume.sources import GATEWAY


def test_transfers_share_the_links_at_both_ends() -> None:
    links = Links(rate=100.0, gateway_rate=60.0)
    ended: dict[str, float] = {}
    # The gateway's 60 are shared by two until the shorter one ends after 1 s.
    links.send(GATEWAY, "a", 30, lambda: ended.update(a=links.now))
    links.send(GATEWAY, "b", 90, lambda: ended.update(b=links.now))
    # Two into c: 50 each, although each sender has 100.
    links.send("x", "c", 50, lambda: ended.update(x=links.now))
    links.send("y", "c", 50, lambda: ended.update(y=links.now))
    links.run()
    assert ended == {"a": 1.0, "b": 2.0, "x": 1.0, "y": 1.0}
    assert links.sent == {GATEWAY: 120, "x": 50, "y": 50}
    assert links.got == {"a": 30, "b": 90, "c": 100}


def test_a_file_reaches_all_hosts_and_leaves_the_gateway_once() -> None:
    size, rate = 40 * SMALLEST_PART, 1.25e9
    links = Links(rate, rate)
    seconds = fetched(links, size, [f"host-{n}" for n in range(8)], [])
    assert links.sent[GATEWAY] == size
    assert len(seconds) == 8
    assert size / rate < max(seconds.values()) < 2 * size / rate


def test_a_late_host_takes_the_time_of_one_download() -> None:
    size, rate = 40 * SMALLEST_PART, 1.25e9
    links = Links(rate, rate)
    seconds = fetched(links, size, ["late"], [f"host-{n}" for n in range(8)])
    assert seconds["late"] == pytest.approx(size / rate, rel=0.1, abs=10 * LATENCY)
    assert links.sent[GATEWAY] < size / 4


def test_a_step_changes_the_share_that_was_asked_for() -> None:
    before = weights(TENSOR // 8, 0)
    after = step(before, 0.01, 1)
    (old,), (new,) = before.values(), after.values()
    assert old.dtype == np.uint16
    assert np.mean(old != new) == pytest.approx(0.01, rel=0.05)
