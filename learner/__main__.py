"""`torchrun -m learner`: take the pool's next run, train it, go on to the next.

Rank 0 holds the pool's learner lock and talks to the store; the others follow what it says. A run
that cannot be trained fails with a reason in words, and the process goes on. Anything unexpected
ends the process: torchrun starts all ranks again, and the run resumes from its checkpoint.

Exit codes: 0 asked to end (SIGTERM, SIGINT), 1 crash, 2 wrong settings or no Redis, 3 another
learner serves the pool. A Redis that goes away ends the process with 2, too; started again by
torchrun it waits for Redis to come back, and resumes.
"""

import os
import random
import signal
import sys
import threading
import time
from types import FrameType

import transformers
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from structlog.contextvars import bound_contextvars

from learner.crashes import Crashes
from learner.distributed import Ranks, start_ranks, stop_ranks
from learner.errors import USER_ERRORS
from learner.link import RunLink
from learner.midtrain import train_midtrain
from learner.pool import Link, PoolTaken
from learner.rl import train_rl
from services.api_key import key_for
from services.contracts.config import RLConfig, parse_config
from services.contracts.records import RunRecord
from services.contracts.schema import SchemaMismatch
from services.durability import cannot_use
from services.logs import configure, get_logger
from services.process import die_with_parent
from services.settings import EXIT_SETTINGS, Settings, from_command_line
from services.store import Fenced, UnsafeRedis
from services.volume import GatewayAway, Volume

log = get_logger(__name__)

POLL_SECONDS = 0.5
LONGEST_PAUSE = 5.0
SAY_EVERY = 10.0
"""Seconds between two lines about a Redis that stays away."""
REDIS_AWAY = (RedisConnectionError, RedisTimeoutError)
EXIT_POOL_TAKEN = 3


def main() -> int:
    """Serve one pool until told to end. Returns the exit code."""
    die_with_parent()
    settings = from_command_line(Settings)
    configure("learner", settings.log_level, settings.log_format)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    stop = threading.Event()

    def ask_to_end(number: int, frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, ask_to_end)
    signal.signal(signal.SIGINT, ask_to_end)
    ranks = start_ranks()
    try:
        with connect(settings, stop) as link:
            if (code := agree_on_start(ranks, link, settings)) != 0:
                return code
            volume = Volume(settings.data, settings.gateway_url, key_for(settings))
            try:
                serve(ranks, link, volume, stop)
            except SchemaMismatch as error:
                sys.stderr.write(f"error: {error}\n")
                return EXIT_SETTINGS
    except (UnsafeRedis, SchemaMismatch, *REDIS_AWAY) as error:
        sys.stderr.write(f"error: {cannot_use(settings, error)}\n")
        return EXIT_SETTINGS
    stop_ranks(ranks)
    return EXIT_POOL_TAKEN if link.lost else 0


def connect(settings: Settings, stop: threading.Event) -> Link:
    """The connection to the store. Raises UnsafeRedis, and at a first start one of REDIS_AWAY; a
    learner that torchrun started again has had its Redis, and waits for it."""
    again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    said, pause = -SAY_EVERY, POLL_SECONDS
    while True:
        try:
            return Link(settings, stop)
        except REDIS_AWAY as error:
            if not again or stop.is_set():
                raise
            if time.monotonic() - said >= SAY_EVERY:
                said = time.monotonic()
                log.warning("waiting for Redis", reason=cannot_use(settings, error))
            # Not all learners of all pools at once, when a Redis comes back.
            stop.wait(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, LONGEST_PAUSE)


def agree_on_start(ranks: Ranks, link: Link, settings: Settings) -> int:
    """Rank 0 takes the pool; every rank learns whether it could. Returns an exit code."""
    code = 0
    if ranks.first:
        try:
            link.take_pool()
            log.info("learner ready", pool=settings.pool, ranks=ranks.size)
        except PoolTaken as error:
            sys.stderr.write(f"error: {error}\n")
            code = EXIT_POOL_TAKEN
    return int(ranks.max([code])[0])


def serve(ranks: Ranks, link: Link, volume: Volume, stop: threading.Event) -> None:
    """Runs, one at a time, until `stop`."""
    while True:
        record = None
        if ranks.first:
            while record is None and not stop.is_set():
                record = link.next_run()
                if record is None:
                    stop.wait(POLL_SECONDS)
        message = record.model_dump_json().encode() if record else b""
        body = ranks.broadcast(message if ranks.first else None)
        if not body:
            return
        record = RunRecord.model_validate_json(body)
        with bound_contextvars(run=record.id):
            train_one(record, ranks, link, volume, stop)


def train_one(
    record: RunRecord, ranks: Ranks, link: Link, volume: Volume, stop: threading.Event
) -> None:
    """One run, to its end or to ours, with its last state said in words."""
    run = RunLink(link, record)
    file = volume.path(f"runs/{record.id}/crashes-{ranks.rank}.json")
    crashes = Crashes(file, record.committed_step)
    if record.state.final or record.cancel_requested:
        if ranks.first:
            began = "" if record.started else ", before it began"
            run.finish("cancelled", f"on request{began}")
        return
    log.info("run starts", name=record.name, kind=record.kind)
    try:
        ranks.together(crashes.check)
        if ranks.first:
            run.set_state("starting", "")
        config = ranks.together(lambda: parse_config(record.config))
        train = train_rl if isinstance(config, RLConfig) else train_midtrain
        crashes.working(record.committed_step + 1)
        ending = train(record, config, ranks, run, volume, stop, crashes)  # type: ignore[arg-type]
    except Fenced:
        log.warning("another learner has taken this run over")
        return
    except USER_ERRORS as error:
        log.error("run failed", reason=str(error))
        if ranks.first:
            run.finish("failed", str(error))
        return
    except SchemaMismatch as error:
        # A checkpoint, or a group, of another version, under which the run can go on.
        if ranks.first:
            run.pause(str(error))
        raise
    except (*REDIS_AWAY, GatewayAway):
        # Not the run's fault, and no crash to count.
        raise
    except Exception as error:
        crashes.record(error)
        raise
    finally:
        crashes.resting()
    if not ranks.first:
        return
    match ending:
        case "finish":
            run.finish("succeeded", "")
        case "cancel":
            run.finish("cancelled", "on request")
        case _:
            log.info("run goes on at the next start")


if __name__ == "__main__":
    sys.exit(main())
