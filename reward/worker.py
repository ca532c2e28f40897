"""What runs in one worker process: take jobs, judge them one by one, send each verdict at once.

Sending each verdict before the next job starts is what makes blame exact: when this process is
killed or dies, the first job without a verdict is the one that did it. Never catches a deadline
itself, and never writes to anything but its socket.
"""

import math
import os
import resource
import socket
import time
from typing import Any

import msgspec

from reward.frames import Answer, Job, Step, pack, receive, unpack_item
from reward.verifiers.base import (
    BadReferenceError,
    Item,
    Verdict,
    broken,
    failed,
)
from reward.verifiers.registry import AnyVerifier, Registry, parse_params
from services.contracts.scores import ScoreStatus

READY = b"\xc0"
"""The first frame of a worker (msgpack nil): it can take jobs."""
MAX_DETAIL = 1000
_VERDICTS = msgspec.msgpack.Decoder(Verdict)


def work(connection: socket.socket, registry: Registry, memory_bytes: int) -> None:
    """Serve jobs from `connection` until it closes. `memory_bytes`: what may be added to now."""
    limit_memory(memory_bytes)
    connection.sendall(len(READY).to_bytes(4, "little") + READY)
    decoder = msgspec.msgpack.Decoder(list[Job])
    while (body := receive(connection)) is not None:
        for job in decoder.decode(body):
            began = time.perf_counter()
            item = unpack_item(job.item)
            verdict = judge(registry[item.verifier], item, job.step)
            connection.sendall(pack(Answer(job.ticket, verdict, time.perf_counter() - began)))


def judge(verifier: AnyVerifier, item: Item, step: Step) -> Verdict:
    """The verdict on one item. Whatever the verifier raises becomes a verdict too."""
    try:
        params = parse_params(verifier, item.params)
        if step is Step.REFERENCE:
            verifier.check_reference(item.answer, params)
            return Verdict(ScoreStatus.SCORED, 0.0)
        return _checked(verifier, verifier.score(item, params))
    except BadReferenceError as error:
        return broken(str(error))
    except MemoryError:
        return _over_memory(verifier, item, step)
    except Exception as error:
        return broken(f"verifier {verifier.name!r} broke: {_brief(error)}")


def _over_memory(verifier: AnyVerifier, item: Item, step: Step) -> Verdict:
    """The limit is on what one item may add: what hits it answers for it."""
    if step is Step.SCORE and judge(verifier, item, Step.REFERENCE).status is not ScoreStatus.ERROR:
        return failed(ScoreStatus.WRONG, "memory_limit")
    return broken("checking the reference answer alone takes more memory than a worker has")


def limit_memory(added_bytes: int) -> None:
    """Let this process map at most `added_bytes` more than it has, and leave no core dumps."""
    with open("/proc/self/statm") as statm:
        mapped = int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = mapped + added_bytes
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _checked(verifier: AnyVerifier, verdict: Any) -> Verdict:
    """`verdict`, if it keeps the contract: own verifiers are not trusted to."""
    if not isinstance(verdict, Verdict):
        return broken(f"verifier {verifier.name!r} returned {type(verdict).__name__}, no Verdict")
    try:
        # What this gives is what the service will read.
        read = _VERDICTS.decode(msgspec.msgpack.encode(verdict))
    except (TypeError, ValueError, OverflowError) as error:
        return broken(f"verifier {verifier.name!r} returned no valid Verdict: {_brief(error)}")
    numbers = [*read.components.values(), *([] if read.reward is None else [read.reward])]
    if not all(math.isfinite(number) for number in numbers):
        return broken(f"verifier {verifier.name!r} returned a reward that is not finite")
    if (read.reward is None) != (read.status is ScoreStatus.ERROR):
        return broken(
            f"verifier {verifier.name!r} returned status {read.status!s} with reward "
            f"{read.reward}: null goes with 'error' alone"
        )
    return msgspec.structs.replace(read, detail=read.detail[:MAX_DETAIL])


def _brief(error: Exception) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:300]
    except Exception:
        # SymPy's errors hold expressions whose text can itself fail to be built.
        return type(error).__name__
