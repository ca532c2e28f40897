"""The benchmark of weight distribution: its links and weights, and its parts in a tiny size."""

from pathlib import Path

import numpy as np
import pytest

from bench.links import LATENCY, Links, fetched
from bench.push import (
    BYTES_PER_CHANGE,
    TENSOR,
    WORKERS,
    codec,
    spread,
    spreads,
    step,
    weights,
)
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


def test_a_step_changes_the_given_share_of_the_weights() -> None:
    before = weights(TENSOR // 8, 0)
    after = step(before, 0.01, 1)
    (old,), (new,) = before.values(), after.values()
    assert old.dtype == np.uint16
    assert np.mean(old != new) == pytest.approx(0.01, rel=0.05)


def test_hosts_that_pass_a_file_on_relieve_the_gateway() -> None:
    size = 40 * SMALLEST_PART
    alone, shared = (spread(size, WORKERS, alone=alone) for alone in (True, False))
    assert alone["gateway sends, GB"] == WORKERS * size / 1e9
    assert shared["gateway sends, GB"] == size / 1e9


def test_a_delta_leads_to_the_new_weights_and_costs_a_few_bytes_a_change(tmp_path: Path) -> None:
    assert 2 < codec(1 << 16, 0.01, tmp_path)[BYTES_PER_CHANGE] < 5


def test_every_change_goes_to_one_8_and_56_hosts() -> None:
    sides = spreads("8B", {0.004: 3.26, 0.01: 3.18}).sides
    assert {f"delta of 0.4%, {hosts}" for hosts in ("1 host", "8 hosts", "56 hosts")} < set(sides)
    assert len(sides) == 3 + 2 * 3 + 2
