"""What recovery writes for runs of which Redis has lost commits (services/recovery/)."""

import json
from collections.abc import Sequence

from services.contracts.rows.task import TaskPosition
from services.store.keys import run_key
from services.store.runs.runs import CLOSED_PARTS
from services.store.runs.submission import ORDER
from services.store.scripts import Noun


class Recovery(Noun):
    """Recovery's access to runs."""

    async def cursor(self, run: str) -> tuple[TaskPosition, int] | None:
        """A run's next task, and the rows of its dataset; None for one that samples nothing."""
        found = await self._redis.hmget(run_key(run, "order"), [*ORDER, "dataset_rows"])
        if found[0] is None:
            return None
        *parts, rows = map(int, found)
        return TaskPosition(*parts), rows

    async def note_loss(self, run: str, what: str) -> None:
        """Have the run's audit say what it cannot know."""
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
        """Set a run to a checkpoint that Redis had lost: write `rows` to its ledger, `order` to its
        cursor, and make `tasks` its open ones. False: Redis has this step, or a later one."""
        parts = ("run", "order", "returned", "ledger", "lineages")
        emptied = [part for part in CLOSED_PARTS if part not in parts]
        keys = [run_key(run, part) for part in (*parts, *emptied)]
        flat = [[text for pair in fields.items() for text in pair] for fields in rows]
        given = [flat, order, list(tasks), list(lineages)]
        arguments = [step, checkpoint, note, *map(json.dumps, given)]
        return bool(await self._scripts.run("recover", keys, arguments))
