"""Writes for runs whose commits Redis has lost (services/recovery/)."""

import json
from collections.abc import Sequence

from services.contracts.rows.task import TaskPosition
from services.store.keys import EMPTIED_PARTS, IN_FLIGHT_PARTS, RUN_PARTS, run_key
from services.store.runs.new_run import ORDER
from services.store.scripts import StorePart


class Recovery(StorePart):
    """Reads and repairs runs whose commits Redis has lost."""

    async def cursor(self, run: str) -> tuple[TaskPosition, int] | None:
        """Return a run's next task and the rows of its dataset; None for a run that does not
        sample."""
        values = await self._redis.hmget(run_key(run, "order"), [*ORDER, "dataset_rows"])
        if values[0] is None:
            return None
        *parts, rows = map(int, values)
        return TaskPosition(*parts), rows

    async def clear(self, run: str) -> None:
        """Delete what is left of a run without a record."""
        await self._redis.unlink(*[run_key(run, part) for part in RUN_PARTS])

    async def note_loss(self, run: str, what: str) -> None:
        """Add a loss to the run's audit."""
        key = run_key(run, "run")
        before = await self._redis.hget(key, "lost_writes")
        text = f"{before.decode()}; {what}" if before else what
        await self._redis.hset(key, "lost_writes", text)

    async def recover(
        self,
        run: str,
        step: int,
        checkpoint: str,
        note: str,
        rows: Sequence[dict[str, str]],
        order: dict[str, int],
        tasks: Sequence[str],
        lineages: Sequence[str],
    ) -> bool:
        """Set a run to a checkpoint that Redis has lost: write `rows` to its ledger, `order` to its
        cursor, and make `tasks` its open ones. Returns False if Redis has this step or a later
        one."""
        emptied = [run_key(run, part) for part in (*IN_FLIGHT_PARTS, *EMPTIED_PARTS)]
        flat = [[text for pair in fields.items() for text in pair] for fields in rows]
        state = [flat, order, list(tasks), list(lineages)]
        arguments = [step, checkpoint, note, *map(json.dumps, state)]
        recovered = bool(await self._scripts.run("recover", arguments, more=emptied, run=run))
        await self._announce(run)
        return recovered
