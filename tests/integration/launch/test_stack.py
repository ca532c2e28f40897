"""`Stack`: a real Redis and small parts inside `with`, ready on enter and gone on exit."""

import asyncio
import gc
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from services.launch import LaunchError, Stack, UpOptions
from services.launch.control import ask
from services.launch.part import Loading, LogFile, Part, http_not_ready
from services.launch.plan import Plan, RolloutWorkers, make_plan
from services.launch.supervised_part import Rules, SupervisedPart
from services.runtime.process import INSTANCE, marked, started_at
from tests.integration.gateway.servers import RedisServer
from tests.integration.launch.conditions import eventually
from tests.integration.launch.small_parts import CRASHING, MISCONFIGURED, OBEDIENT, STUBBORN, script
from tests.ports import own_ports
from tests.upstream import Upstream

REDIS = frozenset({"redis"})

# Answers /readyz with 503 until the file named in argv[2] exists.
SLOW_SERVER = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        ready = os.path.exists(sys.argv[2])
        self.send_response(200 if ready else 503)
        self.end_headers()
        self.wfile.write(b"" if ready else b"warming up")
    def log_message(self, *args):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def stack_of(data: Path, *parts: Part, grace: float = 20.0, start_tries: int = 3) -> Stack:
    urls = ("redis://127.0.0.1:1/0", "http://127.0.0.1:1", "http://127.0.0.1:1")
    options = UpOptions(data=data, grace=grace, start_tries=start_tries)
    return Stack(options, planner=lambda options, folder: Plan(parts, *urls))


def redis_stack(data: Path) -> Stack:
    return Stack(UpOptions(data=data, parts=REDIS))


def test_redis_is_ready_on_enter_and_gone_on_exit(tmp_path: Path) -> None:
    with redis_stack(tmp_path) as stack:
        client = redis.Redis.from_url(stack.redis_url)
        assert client.ping()
        assert client.config_get("append*")["appendfsync"] == "always"
        assert client.config_get("append*")["appendonly"] == "yes"
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        pid = stack.processes["redis"]
        assert stack.status("redis").state == "ready"
    assert started_at(pid) is None
    assert stack.processes == {}


def test_redis_killed_is_back_with_everything_it_acknowledged(tmp_path: Path) -> None:
    with redis_stack(tmp_path) as stack:
        client = redis.Redis.from_url(stack.redis_url)
        for i in range(100):
            client.rpush("list", i)
        first = stack.processes["redis"]
        os.kill(first, signal.SIGKILL)
        eventually(lambda: stack.processes.get("redis") not in (None, first))
        eventually(lambda: stack.status("redis").state == "ready")
        assert [int(one) for one in client.lrange("list", 0, -1)] == list(range(100))
        assert stack.status("redis").restarts == 1


def test_a_stopped_stack_starts_again_from_its_data(tmp_path: Path) -> None:
    with redis_stack(tmp_path) as stack:
        redis.Redis.from_url(stack.redis_url).set("kept", "yes")
    with redis_stack(tmp_path) as stack:
        assert redis.Redis.from_url(stack.redis_url).get("kept") == b"yes"


def test_redis_cannot_be_made_to_write_elsewhere(tmp_path: Path) -> None:
    with redis_stack(tmp_path) as stack:
        client = redis.Redis.from_url(stack.redis_url)
        for command in (
            ("CONFIG", "SET", "dir", "/tmp"),
            ("MODULE", "LOAD", "/tmp/evil.so"),
            ("REPLICAOF", "127.0.0.1", "6379"),
            ("DEBUG", "SLEEP", "1"),
            ("ACL", "SETUSER", "default", "+@all"),
        ):
            # Redis 7 and Valkey also switch off MODULE and DEBUG themselves.
            with pytest.raises(redis.exceptions.ResponseError, match=r"permission|not allowed"):
                client.execute_command(*command)


def test_a_redis_that_runs_already_is_used_and_left_running(tmp_path: Path) -> None:
    with redis_stack(tmp_path / "first") as first:
        options = UpOptions(
            data=tmp_path / "second",
            redis_url=first.redis_url,
            parts=frozenset({"redis", "gateway"}),
        )
        with Stack(options, planner=lambda o, d: Plan((script("gateway", OBEDIENT),), "", "", "")):
            assert first.status("redis").state == "ready"
        assert redis.Redis.from_url(first.redis_url).ping()


def test_a_given_redis_that_does_not_answer_is_named_without_its_password(tmp_path: Path) -> None:
    options = UpOptions(data=tmp_path, redis_url="redis://:hunter2@127.0.0.1:1/0")
    with pytest.raises(LaunchError, match=r"Redis at redis://:\*\*\*@127\.0\.0\.1:1/0") as raised:
        Stack(options).__enter__()
    assert "hunter2" not in str(raised.value)


def test_a_given_redis_that_may_lose_work_needs_the_flag(tmp_path: Path) -> None:
    weak = RedisServer(tmp_path, fsync="everysec")
    weak.start()
    try:
        options = UpOptions(data=tmp_path / "data", redis_url=weak.url, parts=frozenset())
        accepted = replace(options, allow_unsafe_redis=True)
        part = script("gateway", OBEDIENT)
        with pytest.raises(LaunchError, match="has appendfsync everysec, which may lose"):
            Stack(options).__enter__()
        with Stack(accepted, planner=lambda o, d: Plan((part,), "", "", "")) as stack:
            assert stack.status("gateway").state == "running"
    finally:
        weak.stop()


def test_a_second_learner_on_the_same_pool_is_refused_before_anything_starts(
    tmp_path: Path,
) -> None:
    with redis_stack(tmp_path / "first") as first:
        client = redis.Redis.from_url(first.redis_url)
        ended = threading.Event()

        def learn() -> None:
            """Hold the pool as a living learner does."""
            while not ended.wait(0.05):
                client.pexpire("headrace:{pool:default}:learner", 10_000)

        client.set("headrace:{pool:default}:learner", "host:token", px=10_000)
        learning = threading.Thread(target=learn)
        learning.start()
        options = UpOptions(data=tmp_path / "second", redis_url=first.redis_url)
        try:
            with pytest.raises(LaunchError, match=r"pool 'default' already has a learner.*--with"):
                Stack(options).__enter__()
        finally:
            ended.set()
            learning.join()
    assert not (tmp_path / "second" / "logs").exists()


def test_the_lock_of_a_killed_learner_does_not_count_as_a_learner(tmp_path: Path) -> None:
    with redis_stack(tmp_path / "first") as first:
        client = redis.Redis.from_url(first.redis_url)
        client.set("headrace:{pool:default}:learner", "host:token", px=1_000)
        options = UpOptions(data=tmp_path / "second", redis_url=first.redis_url)
        part = script("learner", OBEDIENT)
        with Stack(options, planner=lambda o, d: Plan((part,), "", "", "")) as second:
            assert second.status("learner").state == "running"


def test_port_in_use_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        stack = Stack(UpOptions(data=tmp_path, parts=REDIS, redis_port=port))
        with pytest.raises(LaunchError, match=f"port {port} .* is in use.*--redis-port"):
            stack.__enter__()
    assert not (tmp_path / "logs").exists()


def test_a_stack_waits_until_its_parts_are_ready(tmp_path: Path) -> None:
    (port,) = own_ports("127.0.0.1", 1)
    flag = tmp_path / "warm"
    seen: list[str] = []

    async def not_ready() -> str | None:
        reason = await http_not_ready(f"http://127.0.0.1:{port}/readyz")()
        if reason is not None:
            seen.append(reason)
            if "warming up" in reason:
                # The learner is held back while stage 0 says this; now it may go on.
                assert stack.status("learner").state == "waiting"
                flag.touch()
        return reason

    server = (sys.executable, "-c", SLOW_SERVER, str(port), str(flag))
    first = Part(name="redis", argv=server, stage=0, not_ready=not_ready)
    stack = stack_of(tmp_path, first, script("learner", OBEDIENT))
    with stack:
        assert stack.status("learner").state == "running"
    assert "is not ready: 503 warming up" in seen


def test_a_part_that_is_never_ready_fails_the_start_with_its_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def never() -> str | None:
        return "has no model"

    part = Part(
        name="gateway",
        argv=(sys.executable, "-c", OBEDIENT),
        stage=1,
        not_ready=never,
        ready_within=0.5,
    )
    with pytest.raises(LaunchError, match=r"gateway has no model, 0\.5 s after its start"):
        stack_of(tmp_path, part).__enter__()
    # asyncio reports what was cancelled and never looked at once it is collected: to a user, a
    # traceback below the error.
    gc.collect()
    assert [one.getMessage() for one in caplog.records if one.name == "asyncio"] == []


@pytest.mark.parametrize("hangs", [False, True], ids=["loads", "hangs"])
async def test_a_loading_report_restarts_the_deadline_of_a_part(
    tmp_path: Path, hangs: bool
) -> None:
    """The part loads for three times as long as it may take without a word."""
    clock = asyncio.get_running_loop().time
    began = clock()

    async def not_ready() -> str | None:
        if clock() - began < 1.5:
            return Loading("is loading: its model")
        return "is stuck" if hangs else None

    part = replace(script("reward", OBEDIENT), not_ready=not_ready, ready_within=0.5)
    rules = Rules(
        marker={INSTANCE: str(tmp_path)}, grace=5.0, start_tries=1, watch=lambda status: None
    )
    supervised = SupervisedPart(part, LogFile(tmp_path / "reward.log"), rules)
    ended = supervised.begin()
    ready = asyncio.ensure_future(supervised.ready.wait())
    await asyncio.wait({ended, ready}, return_when=asyncio.FIRST_COMPLETED)
    ready.cancel()

    if hangs:
        said = await ended
        assert said is not None
        assert said.startswith("reward is stuck, 0.5 s after it last said that it loads")
    else:
        assert supervised.status.state == "ready"
        supervised.leaving.set()
        await supervised.end()


async def test_a_service_that_is_loading_says_so_over_http(tmp_path: Path) -> None:
    answers = [(503, {"status": "loading", "detail": "model 1 of 2"}), (503, {"status": "x"})]
    with closing(Upstream(lambda path, body: answers.pop(0))) as server:
        check = http_not_ready(f"{server.url}/readyz")
        loading, other = await check(), await check()

    assert isinstance(loading, Loading)
    assert loading == "is loading: model 1 of 2"
    assert not isinstance(other, Loading)


async def test_all_processes_of_a_part_that_never_was_ready_end(tmp_path: Path) -> None:
    async def never() -> str | None:
        return "has no model"

    part = replace(script("gateway", OBEDIENT), not_ready=never, ready_within=0.2)
    marker = {INSTANCE: str(tmp_path)}
    rules = Rules(marker=marker, grace=5.0, start_tries=1, watch=lambda status: None)
    supervised = SupervisedPart(part, LogFile(tmp_path / "gateway.log"), rules)

    reason = await supervised.begin()

    assert reason is not None
    assert reason.startswith("gateway has no model, 0.2 s after its start")
    assert marked(marker) == []


def test_a_part_that_was_ready_once_is_restarted_without_end(tmp_path: Path) -> None:
    async def ready() -> str | None:
        return None

    part = replace(script("gateway", OBEDIENT), not_ready=ready)

    def kill(stack: Stack) -> None:
        eventually(lambda: stack.status("gateway").state == "ready")
        restarts = stack.status("gateway").restarts
        os.kill(stack.processes["gateway"], signal.SIGKILL)
        eventually(lambda: stack.status("gateway").restarts == restarts + 1)

    with stack_of(tmp_path, part, start_tries=1) as stack:
        kill(stack)
        kill(stack)
        kill(stack)
        stack.check()


def test_a_part_that_was_ready_once_and_is_not_in_time_is_restarted(tmp_path: Path) -> None:
    away = tmp_path / "away"

    async def not_ready() -> str | None:
        return "has no Redis" if away.exists() else None

    part = replace(script("gateway", OBEDIENT), not_ready=not_ready, ready_within=0.5)
    with stack_of(tmp_path, part, start_tries=1) as stack:
        away.touch()
        os.kill(stack.processes["gateway"], signal.SIGKILL)
        eventually(lambda: stack.status("gateway").restarts == 2)
        away.unlink()
        eventually(lambda: stack.status("gateway").state == "ready")
        stack.check()
        assert len(marked(stack.marker)) == 1


def test_a_part_that_was_ready_once_is_started_when_it_can_be_again(tmp_path: Path) -> None:
    """As without memory for another process, or while the program is replaced."""
    program = tmp_path / "python"
    program.symlink_to(sys.executable)

    async def ready() -> str | None:
        return None

    part = Part(name="gateway", argv=(str(program), "-c", OBEDIENT), stage=1, not_ready=ready)
    with stack_of(tmp_path, part, start_tries=1) as stack:
        program.unlink()
        os.kill(stack.processes["gateway"], signal.SIGKILL)
        eventually(lambda: "cannot be started" in stack.status("gateway").detail)
        program.symlink_to(sys.executable)
        eventually(lambda: stack.status("gateway").state == "ready")
        stack.check()


def test_a_part_that_keeps_crashing_ends_the_stack_with_its_last_lines(tmp_path: Path) -> None:
    other = script("gateway", OBEDIENT, stage=0)
    with stack_of(tmp_path, other, script("learner", CRASHING), start_tries=2) as stack:
        eventually(lambda: not stack.processes)
        with pytest.raises(LaunchError, match="the GPU is on fire"):
            stack.check()
    assert marked(stack.marker) == []


class MisconfiguredWorkers(RolloutWorkers):
    def part(
        self, index: int, engines: int, running: Sequence[Part] | None = None, serving: int = 0
    ) -> Part:
        return script(f"rollout-{index}", MISCONFIGURED)


def test_an_added_worker_that_cannot_start_is_taken_out_and_the_others_go_on(
    tmp_path: Path,
) -> None:
    options = UpOptions(data=tmp_path, parts=frozenset({"redis", "rollout"}), rollouts=0)
    workers = MisconfiguredWorkers({}, None)
    stack = Stack(options, planner=lambda o, d: replace(make_plan(o, d), workers=workers))
    with stack:
        with pytest.raises(LaunchError, match=r"rollout-0 cannot start: --port"):
            ask(stack.data, {"scale": {"rollout": 1}}, print)
        assert stack.processes.keys() == {"redis"}
        stack.check()


def test_a_missing_program_fails_the_start_by_name(tmp_path: Path) -> None:
    part = Part(name="gateway", argv=("/nowhere/python",), stage=1)
    with pytest.raises(LaunchError, match=r"gateway cannot be started: .*/nowhere/python"):
        stack_of(tmp_path, part).__enter__()


def test_a_part_that_is_killed_comes_back_and_its_descendants_do_not_pile_up(
    tmp_path: Path,
) -> None:
    agent = (
        "import subprocess, sys, signal; subprocess.Popen([sys.executable, '-c', "
        "'import signal; signal.pause()'], start_new_session=True); signal.pause()"
    )
    with stack_of(tmp_path, script("learner", agent)) as stack:
        eventually(lambda: len(marked(stack.marker)) == 2)
        before = set(marked(stack.marker))
        os.kill(stack.processes["learner"], signal.SIGKILL)
        eventually(lambda: stack.status("learner").restarts == 1)
        eventually(lambda: len(marked(stack.marker)) == 2)
        assert not before & set(marked(stack.marker))
    assert marked(stack.marker) == []


def test_an_error_inside_a_stack_ends_all_its_parts(tmp_path: Path) -> None:
    stack = stack_of(tmp_path, script("learner", STUBBORN), grace=0.2)
    with pytest.raises(ZeroDivisionError), stack:
        raise ZeroDivisionError
    assert marked(stack.marker) == []


def test_a_part_that_is_held_back_waits_without_being_given_up(tmp_path: Path) -> None:
    """As Redis on a full disk, which would only end again."""
    room = tmp_path / "room"
    part = replace(
        script("redis", OBEDIENT), held_back=lambda: None if room.exists() else "waits for room"
    )
    room.touch()
    with stack_of(tmp_path, part, start_tries=2) as stack:
        room.unlink()
        os.kill(stack.processes["redis"], signal.SIGKILL)
        eventually(lambda: stack.status("redis").detail == "waits for room")
        room.touch()
        eventually(lambda: stack.status("redis").state == "running")
        assert stack.status("redis").restarts == 1


@contextmanager
def full_disk() -> Iterator[None]:
    """No file can be written to, which fails as on a full disk."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)


def test_a_full_disk_keeps_a_start_but_not_a_restart(tmp_path: Path) -> None:
    with full_disk(), pytest.raises(LaunchError, match="nothing can be written to the data folder"):
        redis_stack(tmp_path).__enter__()

    log = LogFile(tmp_path / "gateway.log")
    with full_disk():
        os.close(log.open(("python",)))


def test_a_torn_record_does_not_keep_the_next_one_from_starting(tmp_path: Path) -> None:
    (tmp_path / "up.json").write_text('{"instance": "ab')
    with redis_stack(tmp_path) as stack:
        assert stack.status("redis").state == "ready"


def test_a_data_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LaunchError, match=r"data folder .*/file/data cannot be used: Not a dir"):
        redis_stack(tmp_path / "file" / "data").__enter__()
