"""The cache of turns: each turn is read once, and memory is limited."""

from typing import Any

from rollout.sessions.recent_turns import OTHER_BYTES, RecentTurns
from services.contracts.sessions import Turn, packed

SESSION = ("run", "attempt", 0)


def turn(tokens: int) -> Turn:
    return Turn(
        added=packed(range(tokens)),
        token_ids=b"",
        logprobs=b"",
        versions=[],
        finish_reason="stop",
        message={},
        prompt_tokens=tokens,
        created=1,
    )


class Stored:
    """Turns in Redis: number n has n tokens. None for a session that is gone."""

    def __init__(self) -> None:
        self.read: list[int] = []
        self.gone = False

    async def turns(
        self, run: str, attempt: str, index: int, numbers: list[int]
    ) -> list[Turn] | None:
        self.read += numbers
        return None if self.gone and numbers else [turn(number) for number in numbers]


def recent(stored: Any, most_bytes: int = 1 << 20) -> RecentTurns:
    return RecentTurns(stored, most_bytes)


async def test_a_turn_is_read_at_most_once() -> None:
    stored = Stored()
    turns = recent(stored)
    assert await turns.of(SESSION, [0, 1]) == [turn(0), turn(1)]
    turns.remember(SESSION, 3, turn(3))
    assert await turns.of(SESSION, [0, 1, 3]) == [turn(0), turn(1), turn(3)]
    assert stored.read == [0, 1]
    # The same numbers of another session are other turns.
    await turns.of(("run", "attempt", 1), [0])
    assert stored.read == [0, 1, 0]


async def test_the_least_recently_used_turns_are_dropped_first() -> None:
    stored = Stored()
    turns = recent(stored, 3 * OTHER_BYTES + 4 * (1 + 2 + 3))
    await turns.of(SESSION, [1, 2, 3])
    await turns.of(SESSION, [1])
    turns.remember(SESSION, 0, turn(0))
    assert stored.read == [1, 2, 3]
    await turns.of(SESSION, [0, 1, 3])
    assert stored.read == [1, 2, 3]
    await turns.of(SESSION, [2])
    assert stored.read == [1, 2, 3, 2]


async def test_turns_that_are_gone_are_not_cached() -> None:
    stored = Stored()
    turns = recent(stored)
    stored.gone = True
    assert await turns.of(SESSION, [0]) is None
    stored.gone = False
    assert await turns.of(SESSION, [0]) == [turn(0)]
