"""The open evaluation of a run: rows leased apart from training, one version for all."""

import json
import secrets
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from services.contracts.config.training import Evaluation
from services.contracts.pass_at import ks, pass_at
from services.contracts.scores import VERDICTS, ScoreStatus
from services.contracts.weights import parse_version_tag
from services.store.datasets import Datasets
from services.store.errors import Fenced, Gone
from services.store.keys import run_key
from services.store.scripts import Noun, Scripts
from services.store.unreadable import reading

PARTS = ("evaluation_returned", "evaluation_attempts", "evaluation_held", "evaluation_results")


@dataclass(frozen=True)
class EvaluationLeases:
    """Rows to answer, as (attempt, row)."""

    id: str
    rows: list[tuple[str, int]]


class Evaluations(Noun):
    """The learner asks, workers answer, the learner reads the outcome."""

    def __init__(self, redis: Any, scripts: Scripts, datasets: Datasets) -> None:
        super().__init__(redis, scripts)
        self._datasets = datasets

    async def ask(
        self, run: str, fencing_token: int, evaluation: Evaluation, *, step: int, min_version: int
    ) -> str:
        """Open an evaluation, replacing an older one. Returns its id. Raises Fenced, and KeyError
        where its dataset does not exist."""
        record = await self._datasets.find(evaluation.dataset)
        if record is None:
            raise KeyError(f"there is no dataset {evaluation.dataset!r} to evaluate on")
        id = secrets.token_hex(4)
        fields = {
            "state": "open",
            "min_version": str(min_version),
            "rows": str(min(record.rows, evaluation.rows or record.rows)),
            "next": "0",
            "step": str(step),
            "name": record.name,
            "samples": str(evaluation.samples),
        }
        keys = [run_key(run, "run"), run_key(run, "evaluation"), *self._keys(run)]
        if (
            await self._scripts.run("evaluation_ask", keys, [fencing_token, id, json.dumps(fields)])
            == -1
        ):
            raise Fenced(run)
        return id

    async def lease(
        self, run: str, *, worker: str, lineage: str, version: int, count: int, ttl: float
    ) -> EvaluationLeases:
        """Up to `count` rows for a worker that serves `version`."""
        if count <= 0:
            return EvaluationLeases("", [])
        keys = [run_key(run, "evaluation"), *self._keys(run), run_key(run, "run")]
        attempts = [secrets.token_hex(8) for _ in range(count)]
        reply = await self._scripts.run(
            "evaluation_lease", keys, [worker, lineage, version, count, int(ttl * 1000), *attempts]
        )
        if not reply:
            return EvaluationLeases("", [])
        id, *pairs = [part.decode() for part in reply]
        rows = list(zip(pairs[::2], map(int, pairs[1::2]), strict=True))
        return EvaluationLeases(id, rows)

    async def renew(self, run: str, attempts: list[str], ttl: float) -> None:
        """Move deadlines to `ttl` seconds from now."""
        keys = [run_key(run, "evaluation_attempts")]
        await self._scripts.run("renew", keys, [int(ttl * 1000), *attempts])

    async def complete(self, run: str, id: str, attempt: str, outcome: dict[str, Any]) -> bool:
        """Record a row's {"rewards", "statuses"}. False: the attempt was no longer held."""
        keys = [run_key(run, "evaluation"), *self._keys(run)[1:]]
        arguments = [id, attempt, json.dumps(outcome)]
        return bool(await self._scripts.run("evaluation_complete", keys, arguments))

    async def release(self, run: str, attempts: list[str]) -> None:
        """Return rows unanswered."""
        await self._scripts.run("evaluation_release", self._keys(run)[:3], attempts)

    async def left(self, run: str) -> tuple[str, int] | None:
        """Id and step of an evaluation that nobody has reported yet, finished or not."""
        id, step = await self._redis.hmget(run_key(run, "evaluation"), "id", "step")
        return None if id is None else (id.decode(), int(step))

    async def close(self, run: str, id: str) -> None:
        """Forget an evaluation, once it is reported or nobody waits for it any more."""
        keys = [run_key(run, "evaluation"), *self._keys(run)]
        await self._scripts.run("evaluation_close", keys, [id])

    async def outcome(self, run: str, id: str) -> dict[str, Any] | None:
        """Accuracy, pass@k and mean reward once every row is answered, else None. Samples that a
        broken verifier could not score are not correct, and do not count for the mean reward.
        Without accuracy and pass@k where the verifiers only rate answers. Raises KeyError where
        that evaluation is no longer there."""
        with reading(f"evaluation {id} of run {run}"):
            return await self._outcome(run, id)

    async def _outcome(self, run: str, id: str) -> dict[str, Any] | None:
        found = await self._redis.hgetall(run_key(run, "evaluation"))
        if found.get(b"id") != id.encode():
            raise Gone(f"evaluation {id} of run {run} was closed, or replaced by another one")
        if found[b"state"] != b"done":
            return None
        answers = [
            json.loads(text)
            for text in (await self._redis.hgetall(run_key(run, "evaluation_results"))).values()
        ]
        rewards = [r for answer in answers for r in answer["rewards"] if r is not None]
        correct = [answer["statuses"].count("correct") for answer in answers]
        statuses = {status for answer in answers for status in answer["statuses"]}
        rated = ScoreStatus.SCORED in statuses and VERDICTS.isdisjoint(statuses)
        # A row that failed has fewer statuses than samples, and counts as that many wrong answers.
        n = int(found[b"samples"])
        _, version = parse_version_tag(found[b"pinned"].decode())
        return {
            "step": int(found[b"step"]),
            "version": version,
            "name": found[b"name"].decode(),
            "reward": sum(rewards) / len(rewards) if rewards else 0.0,
            "rows": len(answers),
            **({} if rated else {"accuracy": sum(correct) / (n * len(answers))}),
            # With k = 1 it is the accuracy.
            **{
                f"pass_at_{k}": fmean(pass_at(k, n, c) for c in correct)
                for k in ks(n)
                if k > 1 and not rated
            },
        }

    def _keys(self, run: str) -> list[str]:
        return [run_key(run, part) for part in PARTS]
