"""Reads run records: one, some, or all, newest first."""

import json
import math
from collections.abc import Sequence
from typing import Any

from redis.exceptions import ResponseError

from headrace.config_keys import POLICY, text_at
from services.contracts.records import RunRecord, RunState, RunSummary, names_of_datasets
from services.contracts.strict_json import decode
from services.store.keys import RUNS, pool_key, run_key
from services.store.scripts import StorePart
from services.store.unreadable import as_text, is_damage, read_run, reading

PIECE = 200
"""Runs read in one round trip."""


class RunRecords(StorePart):
    """Calls that read runs. A run is one hash; its fields are those of RunRecord and those that
    scripts read."""

    async def get(self, run: str) -> RunRecord | None:
        try:
            fields = await self._redis.hgetall(run_key(run, "run"))
        except ResponseError as error:
            if not is_damage(error):
                raise
            return read_run(RunRecord, run, error)
        if not fields:
            return None
        return read_run(RunRecord, run, {as_text(key): value for key, value in fields.items()})

    async def standing(self, run: str) -> tuple[bool, int, str]:
        """Return whether a run is over, being cancelled, or gone; its fencing token; and who asked
        for its pause. Reads three fields, for callers that ask often."""
        names = "state", "fencing_token", "paused_by"
        with reading(f"the state of run {run}"):
            state, token, paused_by = await self._redis.hmget(run_key(run, "run"), *names)
            ends = state is None or RunState(state.decode()).ending
            return ends, int(token or 0), (paused_by or b"").decode()

    async def is_cancelled(self, run: str) -> bool:
        state = await self._redis.hget(run_key(run, "run"), "state")
        return state is not None and state.decode() == RunState.CANCELLED

    async def all(self, since: float = -math.inf) -> list[RunSummary]:
        """Return all runs that were submitted at this time or later, newest first. O(runs
        returned)."""
        ids = [as_text(id) for id in await self._redis.zrevrangebyscore(RUNS, math.inf, since)]
        pieces = [await self.summaries(ids[i : i + PIECE]) for i in range(0, len(ids), PIECE)]
        return [run for piece in pieces for run in piece if run is not None]

    async def listed(self) -> dict[str, float]:
        """Return the ids of all runs, with the times of their submission."""
        listed = await self._redis.zrange(RUNS, 0, -1, withscores=True)
        return {as_text(id): at for id, at in listed}

    async def count(self) -> int:
        """Return how many runs are listed."""
        return int(await self._redis.zcard(RUNS))

    async def summaries(self, ids: Sequence[str]) -> Sequence[RunSummary | None]:
        """Return the runs with these ids; None for a run that is gone."""
        names = list(RunSummary.model_fields)
        pipe = self._redis.pipeline(transaction=False)
        for id in ids:
            pipe.hmget(run_key(id, "run"), names)
        rows = await pipe.execute(raise_on_error=False) if ids else []
        if away := [row for row in rows if isinstance(row, Exception) and not is_damage(row)]:
            raise away[0]
        await self._name_old(ids, names, rows)
        return [
            None
            if isinstance(row, list) and all(value is None for value in row)
            else read_run(
                RunSummary, id, dict(zip(names, row, strict=True)) if isinstance(row, list) else row
            )
            for id, row in zip(ids, rows, strict=True)
        ]

    async def _name_old(
        self, ids: Sequence[str], names: Sequence[str], rows: Sequence[Any]
    ) -> None:
        """Fill in the model and the datasets of runs from before summaries had them."""
        model, datasets = names.index("model"), names.index("datasets")
        old = [
            (id, row)
            for id, row in zip(ids, rows, strict=True)
            if isinstance(row, list) and row[model] is None and any(row)
        ]
        pipe = self._redis.pipeline(transaction=False)
        for id, _ in old:
            pipe.hmget(run_key(id, "run"), "config", "dataset_names")
        configs = await pipe.execute(raise_on_error=False) if old else []
        for (_, row), texts in zip(old, configs, strict=True):
            try:
                config, named = [decode(text or b"{}") for text in texts]
                row[model] = (text_at(config, POLICY) or "").encode()
                row[datasets] = json.dumps(names_of_datasets(config, named)).encode()
            except (TypeError, ValueError):
                # Damaged: the record says so where it is shown whole.
                continue

    async def live(self) -> list[RunRecord]:
        """Return all runs that are not over, whole, newest first."""
        ids = [run.id for run in await self.all() if not run.state.final]
        return [record for id in ids if (record := await self.get(id)) is not None]

    async def active(self, pool: str) -> RunRecord | None:
        """Return the run that a pool works on, or None."""
        run = await self._redis.get(pool_key(pool, "active"))
        return await self.get(as_text(run)) if run else None
