"""Edits of runs: the gateway writes them, and the learner takes them at the next step."""

import json
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from headrace.config_keys import EditedKey
from services.contracts.events import EventKind
from services.contracts.records import RunState
from services.contracts.run_edits import RunEdit, taken
from services.store.keys import pool_key, run_key
from services.store.runs.new_run import text_of
from services.store.runs.runs import queue_score
from services.store.scripts import StorePart
from services.store.unreadable import reading

_edits = TypeAdapter(list[RunEdit])


class RunEdits(StorePart):
    """Calls about the edits of runs."""

    async def add(
        self,
        run: str,
        known: Sequence[RunEdit],
        fields: dict[str, Any],
        states: Collection[RunState],
        event: dict[str, Any],
        kind: EventKind = "edit",
    ) -> str:
        """Change fields of a run, and add an event. `known`: the edits that the caller has read.
        Return '', `again` if the edits have changed, or the state if it is not among `states`."""
        texts = [part for name, value in fields.items() for part in (name, text_of(value))]
        before = await self._raw(run)
        if before and _edits.validate_json(before) != list(known):
            return "again"
        arguments = [" ".join(states), before, time.time(), kind, json.dumps(event), *texts]
        reply = (await self._scripts.run("edit_run", arguments, run=run)).decode()
        if reply == "edited":
            await self._announce(run)
        return "" if reply == "edited" else reply or "gone"

    async def move(self, run: str, pool: str, created: float, priority: int) -> None:
        """Move a run in its pool's queue, if it still stands there."""
        score = queue_score(created, priority)
        await self._redis.zadd(pool_key(pool, "queue"), {run: score}, xx=True)

    async def take(self, run: str, fencing_token: int, step: int) -> list[RunEdit]:
        """Return the edits of a run. New ones hold from `step` on. Raises Fenced."""
        while True:
            before = await self._raw(run)
            with reading(f"the edits of run {run}"):
                edits = _edits.validate_json(before or b"[]")
            new = [edit for edit in edits if edit.step is None]
            if not new:
                return edits
            after = taken(edits, step)
            values = {edit.key: edit.after for edit in new}
            event = {"step": step, "values": values}
            arguments = [
                fencing_token,
                before,
                _edits.dump_json(after),
                time.time(),
                json.dumps(event),
                *_fields(values, after),
            ]
            if await self._run_fenced("take_edits", run, arguments):
                await self._announce(run)
                return after

    async def _raw(self, run: str) -> bytes:
        return await self._redis.hget(run_key(run, "run"), "edits") or b""


def _fields(values: Mapping[EditedKey, float], edits: Sequence[RunEdit]) -> list[str | int]:
    """Return the fields of a run's hash that scripts and the audit read: name, value, and so on."""
    fields: list[str | int] = []
    if "max_steps" in values:
        fields += ["max_steps", int(values["max_steps"])]
    if "max_staleness" in values:
        pairs = [(edit.before, edit.after) for edit in edits if edit.key == "max_staleness"]
        most = max(bound for pair in pairs for bound in pair if bound is not None)
        fields += ["max_staleness", int(values["max_staleness"]), "max_staleness_most", int(most)]
    return fields
