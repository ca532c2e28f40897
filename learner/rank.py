"""A rank of the learner: take the pool's next run, train it, and continue with the next run.

Rank 0 holds the pool's learner lock and talks to the store. The other ranks follow its commands. A
run that cannot be trained fails with a reason, and the process continues. Any unexpected error ends
the process, and so does an error that may pass by the next start. The supervisor, or the engine
that started the ranks, starts all of them again, and the run resumes from its checkpoint.

Exit codes: 0 asked to end (SIGTERM, SIGINT); 1 crash, Redis went away, or another rank is gone; 2
wrong settings, ranks of a job that differ, or Redis away at the first start; 3 another learner
serves the pool. The supervisor restarts the ranks
without limit, and a restarted rank waits for its Redis: only `coordinate.crash_limit` decides that
a run has crashed too often. After 2 and 3 no restart helps, and the supervisor ends too.
"""

import os
import random
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import transformers
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from structlog.contextvars import bound_contextvars

from learner.coordinate.crash_limit import CrashLimit
from learner.distributed import USER_ERRORS, Ranks, start_ranks, stop_ranks
from learner.environment import RunEnvironment
from learner.errors import PeerFailed, RunCannotGoOn
from learner.job.checks import check_hosts
from learner.job.meeting import meet
from learner.job.variables import JobError, job_rank
from learner.job.watch import RankWatch
from learner.model.pass_plan import gpu_of
from learner.rl import train_rl
from learner.settings import EXIT_CRASH, EXIT_POOL_TAKEN, STARTS, LearnerSettings
from learner.sft import train_sft
from learner.store.run_store import RunStore
from learner.store.thread import PoolTaken, StoreThread
from learner.transient_errors import passes
from services.contracts.config import RLConfig
from services.contracts.config.trust import parse_trusted
from services.contracts.devices import GPUDevice, LearnerDevices, LearnerHost
from services.contracts.records import RunRecord
from services.contracts.rows.template_limits import TemplateTooGreedy, check_noted, noted
from services.contracts.schema import SchemaMismatch
from services.log_shipping import ShippedLogs
from services.recovery.lost_writes import lost_commit
from services.recovery.record_copies import newest_commit
from services.runtime.api_key import key_for
from services.runtime.host_load import free_memory, memory_of, total_memory
from services.runtime.logs import configure, get_logger
from services.runtime.panics import panics_as
from services.runtime.process import die_with_parent, keep_files_private
from services.settings import EXIT_SETTINGS, Settings, from_command_line
from services.store import Fenced, UnsafeRedis
from services.store.at_start import cannot_use
from services.volume import GatewayAway, Volume

log = get_logger(__name__)

POLL_SECONDS = 0.5
LONGEST_PAUSE = 5.0
LOG_SECONDS = 10.0
"""Seconds between two log lines about a Redis that stays away."""
REDIS_AWAY = (RedisConnectionError, RedisTimeoutError)


def main() -> int:
    """Serve one pool until asked to end. Returns the exit code. Raises SystemExit for invalid
    settings."""
    die_with_parent()
    keep_files_private()
    settings = from_command_line(LearnerSettings)
    configure("learner", settings.log_level, settings.log_format)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    asked, stop = threading.Event(), threading.Event()

    def ask_to_end(number: int, frame: FrameType | None) -> None:
        asked.set()
        stop.set()

    signal.signal(signal.SIGTERM, ask_to_end)
    signal.signal(signal.SIGINT, ask_to_end)
    with ShippedLogs(settings, f"learner/{os.environ.get('RANK', '0')}", settings.pool):
        return serve_pool(settings, stop, asked)


def restarted() -> bool:
    return os.environ.get(STARTS, "0") != "0"


def serve_pool(settings: Settings, stop: threading.Event, asked: threading.Event) -> int:
    """Take the pool and train its runs until `stop`. Returns the exit code. `asked`: set if a
    signal has asked this process to end."""
    try:
        with connect(settings, stop) as thread:
            ranks, watch = join_ranks(settings, stop)
            if (code := agree_on_start(ranks, thread, settings)) != 0:
                return code
            volume = Volume(settings.data, settings.gateway_url, key_for(settings))
            try:
                PoolRank(ranks, thread, volume, stop, settings.trust_remote_code).serve()
            except SchemaMismatch as error:
                sys.stderr.write(f"error: {error}\n")
                return EXIT_SETTINGS
            except REDIS_AWAY as error:
                sys.stderr.write(f"error: {cannot_use(settings, error)}\n")
                return EXIT_CRASH
            if watch is not None:
                watch.leave()
            stop_ranks(ranks)
    except JobError as error:
        sys.stderr.write(f"error: {error}\n")
        log.error("the ranks cannot train together", reason=str(error))
        return error.code
    except (UnsafeRedis, SchemaMismatch, *REDIS_AWAY) as error:
        sys.stderr.write(f"error: {cannot_use(settings, error)}\n")
        return EXIT_CRASH if restarted() and isinstance(error, REDIS_AWAY) else EXIT_SETTINGS
    if thread.lost:
        return EXIT_POOL_TAKEN
    # An engine that has asked the ranks of another host alone to end starts this one again.
    return EXIT_CRASH if watch is not None and not asked.is_set() else 0


def join_ranks(settings: Settings, stop: threading.Event) -> tuple[Ranks, RankWatch | None]:
    """Meet the other ranks. Ranks that an engine has started check that they fit together, and
    watch each other. Raises JobError."""
    job = job_rank(os.environ)
    if job is None or job.size == 1:
        return start_ranks(), None
    ranks = start_ranks(meet(job, settings.pool, stop), spared_port=job.port)
    check_hosts(ranks, settings.data, gathered_gpus(ranks))
    watch = RankWatch(ranks, stop, settings.alive_file)
    watch.start()
    return ranks, watch


def connect(settings: Settings, stop: threading.Event) -> StoreThread:
    """Connect to the store. Raises UnsafeRedis, and at the first start one of REDIS_AWAY. A
    restarted learner has had its Redis before, so it waits."""
    logged, pause = -LOG_SECONDS, POLL_SECONDS
    while True:
        try:
            return StoreThread(settings, stop)
        except REDIS_AWAY as error:
            if not restarted() or stop.is_set():
                raise
            if time.monotonic() - logged >= LOG_SECONDS:
                logged = time.monotonic()
                log.warning("waiting for Redis", reason=cannot_use(settings, error))
            # Spread the retries of all learners when a Redis comes back.
            stop.wait(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, LONGEST_PAUSE)


def agree_on_start(ranks: Ranks, thread: StoreThread, settings: Settings) -> int:
    """Have rank 0 take the pool, and tell every rank whether it could. Returns an exit code."""
    code = 0
    gpus = gathered_gpus(ranks)

    def devices() -> LearnerDevices:
        host = described_host(ranks.local_size)
        return LearnerDevices(ranks=ranks.size, gpus=gpus, host=host)

    if ranks.first:
        try:
            thread.take_pool()
            thread.call(lambda: thread.store.pools.report_devices(settings.pool, devices()))
            thread.devices = devices
            log.info("learner ready", pool=settings.pool, ranks=ranks.size)
        except PoolTaken as error:
            sys.stderr.write(f"error: {error}\n")
            code = EXIT_POOL_TAKEN
    return int(ranks.max([code])[0])


def described_host(ranks: int) -> LearnerHost:
    """Describe this machine, which has `ranks`, each with as much memory as this one."""
    return LearnerHost(
        free=free_memory(),
        used=ranks * memory_of(os.getpid()),
        ranks=ranks,
        name=socket.gethostname(),
        total=total_memory(),
    )


def gathered_gpus(ranks: Ranks) -> list[GPUDevice]:
    """Return the GPUs of all ranks. A rank on a CPU contributes no GPU."""
    message = b""
    if ranks.device.type == "cuda":
        message = gpu_of(ranks.device).model_dump_json().encode()
    return [GPUDevice.model_validate_json(each) for each in ranks.gather(message) if each]


def _check_template(note: Path) -> None:
    """Raise RunCannotGoOn if the chat template has ended the rank before."""
    try:
        check_noted(note)
    except TemplateTooGreedy as error:
        raise RunCannotGoOn(str(error)) from None


def next_run(thread: StoreThread, volume: Volume) -> RunRecord | None:
    """Return the pool's next run. Return None if the pool has no run, or if Redis has lost the
    run's commits. Such a run is paused with the reason until it is recovered or cancelled."""
    record = thread.next_run()
    if record is None or record.state.ending:
        return record
    newest = newest_commit(volume.root, record.id)
    problem = lost_commit(volume.root, record, newest, thread.redis_url)
    if problem is None:
        return record
    if record.reason != problem:
        log.error("the run is not trained", run=record.id, reason=problem)
        thread.call(lambda: thread.store.runs.set_state(record.id, "paused", problem))
    return None


@dataclass(frozen=True)
class PoolRank:
    ranks: Ranks
    thread: StoreThread
    volume: Volume
    stop: threading.Event
    trusted: bool
    """Whether the operator trusts the runs' code."""

    def serve(self) -> None:
        while True:
            record = None
            if self.ranks.first:
                while record is None and not self.stop.is_set():
                    record = next_run(self.thread, self.volume)
                    if record is None:
                        self.stop.wait(POLL_SECONDS)
            message = record.model_dump_json().encode() if record else b""
            body = self.ranks.broadcast(message if self.ranks.first else None)
            if not body:
                return
            record = RunRecord.model_validate_json(body)
            with bound_contextvars(run=record.id):
                self.train(record)

    def train(self, record: RunRecord) -> None:
        """Train one run until the run ends or this process should end, and record the run's last
        state with its reason."""
        store = RunStore(self.thread, record)
        if record.damage:
            log.error("run failed", reason=record.damage)
            if self.ranks.first:
                store.finish("failed", record.damage)
            return
        file = self.volume.path(f"runs/{record.id}/crashes-{self.ranks.rank}.json")
        crash_limit = CrashLimit(file, record.committed_step)
        if record.state.ending:
            if self.ranks.first:
                began = "" if record.started else ", before it began"
                store.finish("cancelled", f"on request{began}")
            return
        log.info("run starts", name=record.name, kind=record.kind)
        note = file.with_name(f"template-{self.ranks.rank}.txt")
        try:
            self.ranks.together(lambda: _check_template(note))
            self.ranks.together(crash_limit.check)
            if self.ranks.first:
                store.set_state("starting")
            config = self.ranks.together(lambda: parse_trusted(record.config, self.trusted))
            script = train_rl if isinstance(config, RLConfig) else train_sft
            crash_limit.busy(record.committed_step + 1)
            environment = RunEnvironment(self.ranks, store, self.volume, self.stop)
            with panics_as(RunCannotGoOn), self.thread.training(record.id), noted(note):
                ending = script(config, environment, crash_limit)  # type: ignore[arg-type]
        except Fenced:
            log.warning("another learner has taken this run over")
            return
        except USER_ERRORS as error:
            # A run of days must not end because a disk or a hub is away for a minute.
            if passes(error, is_new=record.committed_step == 0):
                if not isinstance(error, PeerFailed):
                    crash_limit.record(error)
                raise
            log.error("run failed", reason=str(error))
            if self.ranks.first:
                store.finish("failed", str(error))
            return
        except SchemaMismatch as error:
            # A checkpoint or a group of another software version, which can continue the run.
            if self.ranks.first:
                store.pause(str(error))
            raise
        except (*REDIS_AWAY, GatewayAway):
            # An outage, so it does not count as a crash of the run.
            raise
        except Exception as error:
            crash_limit.record(error)
            raise
        finally:
            crash_limit.idle()
        if not self.ranks.first:
            return
        match ending:
            case "finish":
                store.finish("succeeded", "")
            case "cancel":
                store.finish("cancelled", "on request")
            case _:
                log.info("run goes on at the next start")


if __name__ == "__main__":
    sys.exit(main())
