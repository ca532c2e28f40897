"""One worker process: takes one job at a time, and sends its verdict.

When the worker dies, its job without a verdict is to blame. The worker never handles a deadline
itself, and writes only to its socket.
"""

import os
import resource
import socket
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from reward.errors import brief
from reward.frames import pack, receive
from reward.verifiers.base import (
    UNJUDGED,
    BadReferenceError,
    Item,
    ItemWork,
    Verdict,
    Verifier,
    broken,
    checked,
    failed,
)
from reward.verifiers.registry import BUILT_IN, parse_params
from reward.workers.protocol import Answer, WorkerJob, unpack_item
from services.contracts.scores import ScoreStatus

READY = b"\xc0"
"""The first frame of a worker (msgpack nil): it can take jobs."""


def work(
    connection: socket.socket, registry: Mapping[str, Verifier[Any]], memory_bytes: int
) -> None:
    """Serve jobs from `connection` until it closes. The worker may add at most `memory_bytes` of
    memory."""
    limit_memory(memory_bytes)
    connection.sendall(len(READY).to_bytes(4, "little") + READY)
    decoder = msgspec.msgpack.Decoder(WorkerJob)
    while (body := receive(connection)) is not None:
        job = decoder.decode(body)
        began = time.perf_counter()
        item = unpack_item(job.item)
        verdict = verdict_on(registry[item.verifier], item, job.work)
        connection.sendall(pack(Answer(job.ticket, verdict, time.perf_counter() - began)))


def verdict_on(verifier: Verifier[Any], item: Item, work: ItemWork) -> Verdict:
    """Return the verdict on one item. Any exception of the verifier becomes a verdict too."""
    try:
        params = parse_params(verifier, item.params)
        if work is ItemWork.REFERENCE:
            remark = verifier.check_reference(item, params)
            return Verdict(ScoreStatus.SCORED, 0.0, remark if isinstance(remark, str) else "")
        if work is ItemWork.RUN:
            return Verdict(ScoreStatus.SCORED, 0.0, verifier.output(item, params))
        return checked(verifier.name, verifier.score(item, params))
    except BadReferenceError as error:
        return broken(str(error))
    except MemoryError:
        return _over_memory(verifier, item, work)
    except Exception as error:
        # A mistake in a user's own verifier must be seen. A mistake in ours must not pay an answer
        # that provokes it: a masked answer is better off than a wrong one.
        if type(verifier) in BUILT_IN and _answer_is_to_blame(verifier, item, work):
            return failed(ScoreStatus.WRONG, UNJUDGED + brief(error))
        return broken(f"verifier {verifier.name!r} broke: {brief(error)}")


def _over_memory(verifier: Verifier[Any], item: Item, work: ItemWork) -> Verdict:
    """Blame the item that hits the limit: the limit is on what one item may add."""
    if work is ItemWork.RUN:
        return broken("running the program takes more memory than a worker has")
    if _answer_is_to_blame(verifier, item, work):
        return failed(ScoreStatus.WRONG, "memory_limit")
    return broken("checking the reference alone takes more memory than a worker has")


def _answer_is_to_blame(verifier: Verifier[Any], item: Item, work: ItemWork) -> bool:
    """Tell whether the answer is to blame, because its reference alone can be checked."""
    if work is not ItemWork.SCORE:
        return False
    return verdict_on(verifier, item, ItemWork.REFERENCE).status is not ScoreStatus.ERROR


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
