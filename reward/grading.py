"""Runs graders: gives the verifier `grader` its workers, and answers `/v1/graders/run`."""

import asyncio
import time

from reward.scoring import Service
from reward.verifiers.base import Item, Verdict
from reward.verifiers.graders.grader_verifier import GraderVerifier, InWorker
from reward.verifiers.registry import UnusableError, usable
from reward.workers.pool import Pool, QueueFullError
from reward.workers.protocol import Request, pack_item
from services.contracts.graders import GraderRun, GraderRunRequest
from services.http import Problem, ProblemItem


def scorer_in(pool: Pool) -> InWorker:
    """Return a function that scores items in a pool's workers, and waits while its queue is
    full."""

    async def score(item: Item, seconds: float, slow: bool) -> Verdict:
        request = Request(item.verifier, pack_item(item), seconds, 0.0, slow)
        while True:
            try:
                (verdict,) = await pool.score([request])
            except QueueFullError as full:
                await asyncio.sleep(full.retry_after)
            else:
                return verdict

    return score


async def run_grader(service: Service, request: GraderRunRequest) -> GraderRun:
    """Return the outcome of a grader. Raises Problem (422)."""
    began = time.perf_counter()
    try:
        verifier, params = usable(service.registry, GraderVerifier.name, request.params)
    except UnusableError as error:
        problems = [
            ProblemItem(path=path.lstrip("."), message=message) for path, message in error.problems
        ]
        raise Problem(422, str(error), problems) from None
    assert isinstance(verifier, GraderVerifier)
    item = Item(GraderVerifier.name, "", request.sample, None, {}, request.item)
    try:
        pack_item(item)
    except ValueError as error:
        raise Problem(422, f"cannot be graded: {error}") from None
    outcome = await verifier.run(item, params)
    return GraderRun(
        score=outcome.score,
        detail=outcome.detail,
        scores=outcome.scores,
        flags=outcome.flags,
        kind=outcome.kind,
        is_late=outcome.is_late,
        tokens=outcome.tokens,
        seconds=time.perf_counter() - began,
    )
