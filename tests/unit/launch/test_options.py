"""Options of `headrace up`: valid ones, refused ones, and the resulting ports."""

import socket
from collections.abc import Iterator

import pytest

from services.launch import LaunchError, UpOptions
from services.launch.options import cannot_listen, free_ports, parts_named
from services.launch.plan import choose_ports


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_parts_are_named_with_commas_and_unknown_ones_refused() -> None:
    assert parts_named("gateway, reward") == {"gateway", "reward"}
    assert parts_named("") == frozenset()
    with pytest.raises(LaunchError, match="unknown part lerner: the parts are gateway, learner"):
        parts_named("lerner")


def test_unknown_part_is_named() -> None:
    with pytest.raises(
        LaunchError, match=r"unknown part dashboard: the parts are gateway, learner"
    ):
        UpOptions(parts=frozenset({"redis", "dashboard"}))


def test_no_ranks_is_refused() -> None:
    with pytest.raises(LaunchError, match="--ranks 0: at least 1"):
        UpOptions(ranks=0)


def test_zero_rollouts_start_no_worker() -> None:
    assert not UpOptions(rollouts=0).runs("rollout")
    assert UpOptions(rollouts=1).runs("rollout")


def test_a_given_redis_is_not_started() -> None:
    assert not UpOptions(redis_url="redis://10.0.0.1:6379/0").runs("redis")


def test_busy_port_is_named_with_the_flag_that_helps(busy_port: int) -> None:
    assert cannot_listen("127.0.0.1", busy_port)
    for asked, flag in (
        (UpOptions(port=busy_port, reward_port=0), "--port"),
        (UpOptions(port=0, reward_port=busy_port), "--reward-port"),
        (UpOptions(port=0, reward_port=0, redis_port=busy_port), "--redis-port"),
    ):
        with pytest.raises(LaunchError, match=rf"port {busy_port} on 127.0.0.1 is in use.*{flag}$"):
            choose_ports(asked)


def test_all_busy_ports_are_named_at_once(busy_port: int) -> None:
    with pytest.raises(LaunchError, match=r"--port; and --reward-port 70000: a port is"):
        choose_ports(UpOptions(port=busy_port, reward_port=70000))


def test_an_unreachable_host_does_not_count_as_a_busy_port() -> None:
    asked = UpOptions(host="192.0.2.1", port=8000, reward_port=0)
    with pytest.raises(
        LaunchError, match=r"nothing can listen on port \d+ of 192\.0\.2\.1: Cannot"
    ):
        choose_ports(asked)


def test_two_parts_cannot_share_a_port() -> None:
    port = free_ports("127.0.0.1", 1)[0]
    with pytest.raises(LaunchError, match=f"--reward-port {port}: another part"):
        choose_ports(UpOptions(port=port, reward_port=port))


def test_a_port_out_of_range_is_refused() -> None:
    with pytest.raises(LaunchError, match="--port 70000: a port is a number from 1 to 65535"):
        choose_ports(UpOptions(port=70000, reward_port=0))


def test_zero_takes_different_free_ports() -> None:
    ports = choose_ports(UpOptions(port=0, reward_port=0, redis_port=0))
    assert len(set(ports)) == 3
    assert all(port > 1023 for port in ports)


def test_only_started_parts_need_a_port(busy_port: int) -> None:
    options = UpOptions(parts=frozenset({"redis"}), port=busy_port)
    assert choose_ports(options)[1:] == (0, 0)


def test_redis_has_a_port_only_on_request() -> None:
    assert choose_ports(UpOptions(port=0, reward_port=0))[0] == 0
    assert choose_ports(UpOptions(port=0, reward_port=0, redis_port=0))[0] > 1023
