"""The newest answers of a run that verifiers have judged, trained or not: a bounded list. A run
that fails before it trains has no other answers."""

from pydantic import ValidationError

from services.contracts.groups.sampled_answer import SampledAnswer
from services.store.keys import run_key
from services.store.scripts import StorePart
from services.store.unreadable import report

KEPT = 16


class JudgedAnswers(StorePart):
    """Calls about judged answers: workers add; the page and the command line read."""

    async def add(self, run: str, answers: list[SampledAnswer]) -> None:
        """Add `answers`, the best one first, and drop the oldest ones."""
        key = run_key(run, "judged")
        async with self._redis.pipeline() as pipe:
            pipe.lpush(key, *(answer.model_dump_json() for answer in reversed(answers)))
            pipe.ltrim(key, 0, KEPT - 1)
            await pipe.execute()

    async def newest(self, run: str) -> list[SampledAnswer]:
        """Return the answers, newest first. Unreadable answers are logged and left out."""
        texts: list[bytes] = await self._redis.lrange(run_key(run, "judged"), 0, KEPT - 1)
        return [answer for answer in map(_parsed, texts) if answer is not None]


def _parsed(text: bytes) -> SampledAnswer | None:
    try:
        return SampledAnswer.model_validate_json(text)
    except ValidationError as error:
        report("a judged answer", str(error)[:200])
        return None
