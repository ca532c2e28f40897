"""Advances a chain from one step to the next.

Every gateway looks at every unfinished chain once a second. The next action follows only from the
chain's record and the run of its present step, and is idempotent: each step is submitted once even
if a gateway is killed in between or two gateways act at once.
"""

import asyncio
import time
from typing import Any

from redis.exceptions import RedisError

from headrace.config_keys import text_at
from services.contracts.chains import (
    ChainRecord,
    ChainState,
    advanced,
    ended,
    references,
    referred,
    with_paths,
)
from services.contracts.config import RLConfig, SFTConfig
from services.contracts.records import RunRecord, RunState
from services.gateway.dependencies import Dependencies
from services.gateway.reference_checks import ReferenceCheck
from services.gateway.submission.fitting import refusals
from services.gateway.submission.resuming import changed_by_resume
from services.gateway.submission.run_submission import RunSubmission, accept, keep_record, refusal
from services.http import Problem
from services.models.path import PREFIX, needed_runs
from services.runtime.logs import get_logger
from services.store import Gone, Unreadable
from services.volume.run_files import last_metric

log = get_logger(__name__)

LOOK_SECONDS = 1.0
_locks: dict[str, asyncio.Lock] = {}
_logged: dict[str, str] = {}
"""By chain, the logged reason why its files cannot be used."""


async def keep_advancing(deps: Dependencies) -> None:
    """Advance all chains again and again, until cancelled."""
    while True:
        try:
            for id in await deps.store.chains.open():
                await _advance_or_log(deps, id)
        except RedisError as error:
            log.debug("chains wait for Redis", reason=str(error))
        await asyncio.sleep(LOOK_SECONDS)


async def _advance_or_log(deps: Dependencies, id: str) -> None:
    """Advance a chain. A chain that cannot be advanced stops no other."""
    try:
        await advance(deps, id)
    except RedisError:
        raise
    except OSError as error:
        # A full disk, or a missing file of the chain: retried each time, logged once.
        if _logged.get(id) != str(error):
            _logged[id] = str(error)
            log.warning("a chain waits for its files", chain=id, reason=str(error))
    except Exception as error:
        log.exception("a chain cannot be advanced", chain=id, reason=repr(error))
    else:
        _logged.pop(id, None)


async def advance(deps: Dependencies, id: str) -> None:
    """Advance the chain `id` until there is nothing to do now."""
    async with _locks.setdefault(id, asyncio.Lock()):
        while True:
            try:
                chain, follows = await _look(deps, id)
            except Gone:
                break
            if chain.state.over or not follows:
                break
    if id not in await deps.store.chains.open():
        _locks.pop(id, None)


async def _look(deps: Dependencies, id: str) -> tuple[ChainRecord, bool]:
    """Look once at a chain's present run, and act. Returns the chain, and whether to look again."""
    chain = await deps.store.chains.get(id)
    if chain is None:
        raise Gone(f"there is no chain {id} any more")
    run = await deps.store.runs.get(chain.step.run)
    before, after = await deps.store.chains.change(
        id, lambda now: advanced(now, run, time.time()) if _same(now, chain) else now
    )
    if before != after or not _same(before, chain):
        if before != after:
            log.info("chain goes on", chain=id, step=after.step.name, state=after.state)
        return after, True
    if chain.state is ChainState.CANCELLING and run is not None:
        if run.state is not RunState.CANCELLING:
            await deps.store.runs.cancel(run.id)
            return chain, True
    elif chain.state is ChainState.RUNNING and run is None:
        return chain, await _submit(deps, chain)
    elif run is not None and run.state is RunState.QUEUED and not run.damage:
        await deps.store.runs.queue_again(run)
    return chain, False


def _same(chain: ChainRecord, other: ChainRecord) -> bool:
    """Whether the chain has still the same present run, and nobody has asked for its end."""
    return chain.step.run == other.step.run and chain.state == other.state


async def _submit(deps: Dependencies, chain: ChainRecord) -> bool:
    """Submit the present step's run. Returns True to look again: a refused run ends the chain."""
    try:
        record, unfinished = await run_of(deps, chain)
        await deps.store.runs.submit(record, needed_runs(record))
    except (Problem, Gone, Unreadable) as error:
        reason = _reason(error)

        def end(now: ChainRecord) -> ChainRecord:
            if not _same(now, chain):
                return now
            return ended(now, ChainState.FAILED, reason, time.time())

        await deps.store.chains.change(chain.id, end)
        log.warning("chain ended", chain=chain.id, step=chain.step.name, reason=reason)
        return True
    await keep_record(deps, record.id)
    await deps.tracking.begin(record)
    deps.references.tell(record.id, unfinished)
    log.info("run queued", run=record.id, chain=chain.id, step=chain.step.name, kind=record.kind)
    now = await deps.store.chains.get(chain.id)
    is_running = now is not None and now.state is ChainState.RUNNING
    if now is None or not is_running or record.id not in [step.run for step in now.steps]:
        # Another gateway has cancelled the chain meanwhile, and saw no run.
        await deps.store.runs.cancel(record.id)
    return False


async def run_of(deps: Dependencies, chain: ChainRecord) -> tuple[RunRecord, list[ReferenceCheck]]:
    """The run of the present step, and the checks of its references that go on.

    The run starts from what earlier steps made. In a chain that was resumed it continues the step's
    last run, if that has a checkpoint, or has answered rows of the same evaluation. Raises Problem.
    """
    step = chain.step
    previous = await _continued(deps, chain)
    config = await _resolved(deps, chain, step.config, previous)
    submission = RunSubmission(
        config=config,
        name=f"{chain.name}-{step.name}",
        pool=chain.pool,
        priority=chain.priority,
        tags=chain.tags,
        resume_from=previous.id if previous else None,
    )
    accepted = await accept(deps, submission)
    if too_large := refusals(accepted.estimate):
        raise refusal(too_large)
    named = {"id": step.run, "chain": chain.id, "recipe": step.recipe}
    named |= {"submitter": chain.submitter, "project": chain.project}
    if accepted.record.max_steps == 0:
        named["resume_from"] = await _answered(deps, chain, accepted.config)
    return accepted.record.model_copy(update=named), accepted.unfinished


async def _continued(deps: Dependencies, chain: ChainRecord) -> RunRecord | None:
    """Return the last run of the present step that has left a checkpoint."""
    for id in reversed(chain.step.runs[:-1]):
        run = await deps.store.runs.get(id)
        if run is not None and run.checkpoint is not None:
            return run
    return None


async def _answered(
    deps: Dependencies, chain: ChainRecord, config: RLConfig | SFTConfig
) -> str | None:
    """Return the last run of the present step that has evaluated with the same options."""
    for id in reversed(chain.step.runs[:-1]):
        run = await deps.store.runs.get(id)
        if run is not None and not run.damage and not changed_by_resume(config, run.config):
            return id
    return None


async def _resolved(
    deps: Dependencies, chain: ChainRecord, config: dict[str, Any], previous: RunRecord | None
) -> dict[str, Any]:
    """Put the checkpoints into the config that `step:NAME` means by now. If the step's run is
    deleted, the `previous` run of the present step knows its checkpoint: whether the next run
    needs it is checked as for any run that is resumed. Raises Problem."""
    paths = {}
    for key, path in references(config).items():
        name, which = referred(path) or ("", "")
        step = next((candidate for candidate in chain.steps if candidate.name == name), None)
        run = await deps.store.runs.get(step.run) if step else None
        if run is None:
            before = text_at(previous.config, key) if previous else None
            if before is None:
                raise Problem(
                    409,
                    f"{key} {path}: the run of step {name} is deleted, and step {chain.step.name} "
                    "has no checkpoint of its own to go on from: submit the chain again",
                )
            paths[key] = before
            continue
        number: int | str = which
        if which == "last":
            number = run.committed_step
        elif which == "best":
            number = await _best_step(deps, run, f"{key} {path}")
        paths[key] = f"{PREFIX}{run.id}@{number}"
    return with_paths(config, paths)


async def _best_step(deps: Dependencies, run: RunRecord, named: str) -> int:
    """Return the step of `run` with the best validation. Raise Problem, which names `named`, if its
    validation or its checkpoint is missing."""
    best, at = None, run
    while best is None:
        try:
            best = await last_metric(deps.volume.path(f"runs/{at.id}"), "validation/best_step")
        except ValueError as error:
            raise Problem(409, f"{named}: {error}: name a checkpoint by its step") from error
        # A run that was resumed may have validated nothing since.
        before = await deps.store.runs.get(at.resume_from) if at.resume_from else None
        if before is None:
            break
        at = before
    if best is None:
        raise Problem(409, f"{named}: run {run.id} has no validation with a number")
    if not best:
        raise Problem(
            409,
            f"{named}: training has not improved the model: the validation of run {run.id} was "
            "best before its first step. Start from the model that it started from, or from "
            "its last checkpoint (without @best)",
        )
    return int(best)


def _reason(error: Exception) -> str:
    """Return a refusal in words, with each problem's key."""
    if isinstance(error, Problem):
        listed = "; ".join(f"{problem.path}: {problem.message}" for problem in error.problems)
        return listed or error.detail
    return str(error)
