"""Command lines, addresses and environments of the five processes."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from services.launch import LaunchError, UpOptions
from services.launch.cores import CorePlan, plan_cores
from services.launch.part import Part
from services.launch.plan import Plan, exports, make_keys, make_plan

FREE = UpOptions(port=0, reward_port=0)


def on_two_cores(rollouts: int, ranks: int) -> CorePlan:
    return plan_cores([0, 1], rollouts, ranks)


def part(plan: Plan, name: str) -> Part:
    return next(one for one in plan.parts if one.name == name)


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND", raising=False)
    options = replace(FREE, rollouts=2, ranks=2, pool="blue")
    return make_plan(options, tmp_path, place=on_two_cores)


def test_redis_starts_first_and_stops_last(plan: Plan) -> None:
    assert {one.name: one.stage for one in plan.parts} == {
        "redis": 0,
        "gateway": 1,
        "reward": 1,
        "rollout-0": 2,
        "rollout-1": 2,
        "learner": 2,
    }


def test_processes_start_by_their_own_names(plan: Plan) -> None:
    assert part(plan, "gateway").argv[:5] == (
        *(sys.executable, "-m", "services.gateway"),
        *("--host", "127.0.0.1"),
    )
    assert part(plan, "reward").argv[:3] == (sys.executable, "-m", "reward")
    assert part(plan, "rollout-1").argv == (sys.executable, "-m", "rollout")
    assert part(plan, "learner").argv == (sys.executable, "-m", "learner", "--ranks", "2")


def test_all_parts_get_the_same_addresses(plan: Plan, tmp_path: Path) -> None:
    for name in ("gateway", "reward", "rollout-0", "learner"):
        environment = part(plan, name).environment
        assert environment["HEADRACE_REDIS_URL"] == plan.redis_url
        assert environment["HEADRACE_GATEWAY_URL"] == plan.gateway_url
        assert environment["HEADRACE_REWARD_URL"] == plan.reward_url
        assert environment["HEADRACE_DATA"] == str(tmp_path)
        assert environment["HEADRACE_POOL"] == "blue"


def test_engines_and_ranks_are_placed_on_different_cores(plan: Plan) -> None:
    engine, learner = (part(plan, name).environment for name in ("rollout-0", "learner"))
    assert engine["VLLM_CPU_OMP_THREADS_BIND"].split(",")[0] == "0"
    assert learner["OMP_NUM_THREADS"] == "1"


def test_a_placement_the_user_made_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    plan = make_plan(FREE, tmp_path, place=on_two_cores)
    for name in ("rollout-0", "learner"):
        assert "VLLM_CPU_OMP_THREADS_BIND" not in part(plan, name).environment


def test_a_gpu_machine_is_not_placed_by_cpu_core(tmp_path: Path) -> None:
    plan = make_plan(FREE, tmp_path, place=lambda rollouts, ranks: None)
    assert "VLLM_CPU_OMP_THREADS_BIND" not in part(plan, "rollout-0").environment


def test_workers_that_only_serve_have_cores_of_their_own(tmp_path: Path) -> None:
    options = replace(FREE, rollouts=1, serving=1)
    plan = make_plan(options, tmp_path, place=lambda n, ranks: plan_cores(range(4), n, ranks))
    serving, rollout = part(plan, "serving-0"), part(plan, "rollout-0")
    assert serving.environment["HEADRACE_SERVING_ONLY"] == "true"
    assert "HEADRACE_SERVING_ONLY" not in rollout.environment
    assert serving.argv == rollout.argv
    assert serving.cores
    assert not {*serving.cores} & {*rollout.cores}
    alone = make_plan(replace(options, rollouts=0), tmp_path, place=on_two_cores)
    assert [one.name for one in alone.parts if one.stage == 2] == ["serving-0", "learner"]
    assert alone.workers is not None
    assert alone.workers.part(1, 2, []).name == "rollout-1"
    with pytest.raises(LaunchError, match="--serving -1: at least 0"):
        UpOptions(serving=-1)


def test_a_gateway_on_all_interfaces_is_reached_over_loopback(tmp_path: Path) -> None:
    plan = make_plan(replace(FREE, host="0.0.0.0"), tmp_path)
    assert "0.0.0.0" in part(plan, "gateway").argv
    assert plan.gateway_url.startswith("http://127.0.0.1:")


def test_parts_elsewhere_are_reached_where_the_settings_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_GATEWAY_URL", "http://big-box:8000")
    options = UpOptions(parts=frozenset({"rollout"}), redis_url="redis://big-box:6379/0")
    plan = make_plan(options, tmp_path)
    assert [one.name for one in plan.parts] == ["rollout-0"]
    environment = plan.parts[0].environment
    assert environment["HEADRACE_GATEWAY_URL"] == "http://big-box:8000"
    assert environment["HEADRACE_REDIS_URL"] == "redis://big-box:6379/0"


def test_an_unsafe_redis_that_was_accepted_is_accepted_by_every_process(tmp_path: Path) -> None:
    options = UpOptions(
        port=0, reward_port=0, redis_url="redis://box:6379/0", allow_unsafe_redis=True
    )
    plan = make_plan(options, tmp_path)
    assert "redis" not in {one.name for one in plan.parts}
    for one in plan.parts:
        assert one.environment["HEADRACE_ALLOW_UNSAFE_REDIS"] == "true"


def test_another_terminal_gets_absolute_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    usual = Plan((), "", "http://127.0.0.1:8000", "")

    told = {
        "HEADRACE_GATEWAY_URL": "http://127.0.0.1:8000",
        "HEADRACE_DATA": str(tmp_path / "headrace-data"),
    }
    assert exports(usual, tmp_path / "headrace-data", UpOptions()) == told
    in_a_pool = exports(usual, tmp_path / "headrace-data", UpOptions(pool="big"))
    assert in_a_pool == told | {"HEADRACE_POOL": "big"}


def test_with_a_redis_port_workers_on_other_hosts_reach_redis_and_the_reward_service(
    tmp_path: Path,
) -> None:
    closed = make_plan(replace(FREE, host="0.0.0.0"), tmp_path)
    assert "0.0.0.0" not in part(closed, "reward").argv
    assert closed.redis_url == f"unix://{tmp_path}/redis/redis.sock"
    assert not (tmp_path / "redis-password").exists()

    opened = make_plan(replace(FREE, host="0.0.0.0", redis_port=0), tmp_path)
    assert "0.0.0.0" in part(opened, "reward").argv
    assert "bind 0.0.0.0" in (tmp_path / "redis/redis.conf").read_text()
    password = (tmp_path / "redis-password").read_text().strip()
    assert opened.redis_url == f"unix://:{password}@{tmp_path}/redis/redis.sock"
    assert not any(password in argument for one in opened.parts for argument in one.argv)


def test_without_sockets_redis_has_a_port_on_loopback_with_a_password(
    tmp_path: Path,
) -> None:
    data = tmp_path / ("x" * 100)
    plan = make_plan(replace(FREE, host="0.0.0.0"), data)
    assert "bind 127.0.0.1" in (data / "redis/redis.conf").read_text()
    password = (data / "redis-password").read_text().strip()
    assert plan.redis_url.startswith(f"redis://:{password}@127.0.0.1:")
    assert "0.0.0.0" not in part(plan, "reward").argv


def test_keys_are_there_before_any_part_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADRACE_API_KEY", raising=False)
    monkeypatch.delenv("HEADRACE_REWARD_KEY", raising=False)
    make_keys(replace(FREE, parts=frozenset({"gateway"})), tmp_path)
    assert {one.name for one in tmp_path.iterdir()} == {"api-key"}
    key = (tmp_path / "api-key").read_text()
    make_keys(FREE, tmp_path)
    assert {one.name for one in tmp_path.iterdir()} == {"api-key", "reward-key"}
    assert (tmp_path / "api-key").read_text() == key

    (tmp_path / "reward-key").write_text("two words")
    with pytest.raises(LaunchError, match=r"reward-key holds no key"):
        make_keys(FREE, tmp_path)
