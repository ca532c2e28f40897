"""The evaluations of a run. One evaluation is open; the others wait. Workers lease its rows
separately from training, and answer all rows with the same version."""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from services.contracts.evaluation import AnsweredRow, EvaluationRequest
from services.store.keys import run_key
from services.store.scripts import StorePart
from services.store.unreadable import as_text, reading


@dataclass(frozen=True)
class EvaluationLeases:
    """The rows that a worker got of the open evaluation."""

    id: str = ""
    """Empty if there is nothing to do."""
    request: EvaluationRequest | None = None
    """None if the worker knows the request, by its id."""
    rows: list[tuple[str, int]] = field(default_factory=list)
    """Rows to answer, as (attempt, row). With an id and without rows, the worker has a seat and
    must first serve the request's version."""


@dataclass(frozen=True)
class Standing:
    """The state of an evaluation until it is closed."""

    id: str
    state: Literal["open", "done", "failed"]
    reason: str
    answered: int
    parts: int
    """Number of durable files of answers."""


class StoredEvaluations(StorePart):
    """Calls about evaluations: the learner requests them, workers answer rows, and the learner
    moves the answers to files."""

    async def ask(
        self, run: str, fencing_token: int, request: EvaluationRequest, parts: int = 0
    ) -> None:
        """Request an evaluation, unless it is requested already. `parts` is the number of files
        with the answers to rows that are not in the request's `left`. Raises Fenced."""
        arguments = [fencing_token, request.id, request.model_dump_json(), parts]
        await self._run_fenced("evaluation_ask", run, arguments)

    async def let(self, run: str, fencing_token: int, workers: int) -> None:
        """Let at most `workers` workers answer at once; 0 lets all. Raises Fenced."""
        arguments = [fencing_token, "evaluation_workers", workers]
        await self._run_fenced("update_run", run, arguments)

    async def lease(
        self,
        run: str,
        *,
        worker: str,
        version: str,
        busy: bool,
        count: int,
        ttl: float,
        known: str = "",
        reserved: bool = False,
    ) -> EvaluationLeases:
        """Lease up to `count` rows of the open evaluation to a worker that serves `version`
        (LINEAGE:NUMBER). `busy`: the worker has other work. `known`: id of the worker's request.
        `reserved`: it has a seat in any case, also while no evaluation is open."""
        if count <= 0:
            return EvaluationLeases()
        attempts = [secrets.token_hex(8) for _ in range(count)]
        takes = "reserved" if reserved else "busy" if busy else "idle"
        arguments = [worker, version, takes, count, int(ttl * 1000), known, *attempts]
        reply = await self._scripts.run("evaluation_lease", arguments, run=run)
        if not reply:
            return EvaluationLeases()
        id, text, *pairs = [part.decode() for part in reply]
        with reading(f"evaluation {id} of run {run}"):
            request = EvaluationRequest.model_validate_json(text) if text else None
        rows = list(zip(pairs[::2], map(int, pairs[1::2]), strict=True))
        return EvaluationLeases(id, request, rows)

    async def renew(self, run: str, worker: str, attempts: Sequence[str], ttl: float) -> None:
        """Move the deadlines of the worker's seat and of its rows to `ttl` seconds from now."""
        for part, members in ("evaluation_seats", [worker]), ("evaluation_attempts", attempts):
            if members:
                arguments = [int(ttl * 1000), *members]
                await self._scripts.run("renew", arguments, run=run, deadlines=part)

    async def complete(self, run: str, id: str, attempt: str, row: AnsweredRow) -> bool:
        """Record a row's answers. Returns False if the attempt is no longer held."""
        arguments = [id, attempt, row.model_dump_json()]
        return bool(await self._scripts.run("evaluation_complete", arguments, run=run))

    async def release(self, run: str, attempts: Sequence[str], leaves: str = "") -> None:
        """Give rows back without answers. `leaves` is the worker whose seat is removed."""
        await self._scripts.run("evaluation_release", [leaves, *attempts], run=run)

    async def fail(self, run: str, id: str, worker: str, reason: str) -> bool:
        """Note that this worker cannot load the version of the open evaluation. The evaluation
        ends, unless another worker with a seat has not failed. Returns False if the evaluation goes
        on, or is not open."""
        return bool(await self._scripts.run("evaluation_fail", [id, worker, reason], run=run))

    async def standing(self, run: str) -> list[Standing]:
        """Return the state of each evaluation that is open or has ended, until it is closed."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hmget(run_key(run, "evaluation"), "id", "answered")
            pipe.hgetall(run_key(run, "evaluation_ended"))
            pipe.hgetall(run_key(run, "evaluation_parts"))
            (open, answered), ended, parts = await pipe.execute()
        with reading(f"the evaluations of run {run}"):
            written = {as_text(id): int(count) for id, count in parts.items()}
            states = [
                Standing(as_text(id), parts=written.get(as_text(id), 0), **json.loads(text))
                for id, text in ended.items()
            ]
            if open is not None:
                id = as_text(open)
                states.append(Standing(id, "open", "", int(answered), written.get(id, 0)))
            return states

    async def requests(self, run: str) -> list[EvaluationRequest]:
        """Return the requests of all evaluations that are not closed, oldest first."""
        texts = await self._redis.hgetall(run_key(run, "evaluation_requests"))
        with reading(f"the evaluations of run {run}"):
            requests = [EvaluationRequest.model_validate_json(text) for text in texts.values()]
        return sorted(requests, key=lambda request: request.asked)

    async def answers(self, run: str, id: str, limit: int) -> list[AnsweredRow]:
        """Return answers that are in no file yet, ordered by row: all of up to `limit` rows,
        otherwise about `limit` rows."""
        key = run_key(run, "evaluation_answers")
        texts: dict[bytes, bytes] = {}
        cursor = -1
        while cursor and len(texts) < limit:
            cursor, more = await self._redis.hscan(
                key, max(cursor, 0), match=f"{id} *", count=max(limit, 100)
            )
            texts |= more
        with reading(f"the answers of run {run}"):
            rows = [AnsweredRow.model_validate_json(text) for text in texts.values()]
        return sorted(rows, key=lambda row: row.row)

    async def stored(
        self, run: str, fencing_token: int, id: str, part: int, rows: Sequence[int]
    ) -> None:
        """Delete answers that are durable in part `part` (counted from 1). Raises Fenced."""
        arguments = [fencing_token, id, part, *rows]
        await self._run_fenced("evaluation_stored", run, arguments)

    async def close(
        self, run: str, fencing_token: int, id: str, unstored: Sequence[int] = ()
    ) -> None:
        """Forget an evaluation. `unstored` lists the rows whose answers may still be in Redis.
        Raises Fenced."""
        await self._run_fenced("evaluation_close", run, [fencing_token, id, *unstored])
