"""A cache of turns that this worker has recorded or read, so that it reads each from Redis once.

A recorded turn never changes, and turns of an ended session are not requested again.
"""

from collections import OrderedDict
from collections.abc import Sequence

from services.contracts.sessions import Turn
from services.store.agents.sessions import AgentSessions

MOST_BYTES = 64 << 20
"""Size of the cache. The turns that were used longest ago are dropped first."""
OTHER_BYTES = 1024
"""Size of a turn without its tokens, about."""

Session = tuple[str, str, int]
"""(run, attempt, index)."""


class RecentTurns:
    """The earlier turns of the conversations that a worker plays."""

    def __init__(self, sessions: AgentSessions, most_bytes: int = MOST_BYTES) -> None:
        self._sessions = sessions
        self._most = most_bytes
        self._known: OrderedDict[tuple[Session, int], Turn] = OrderedDict()
        self._bytes = 0

    async def of(self, session: Session, numbers: Sequence[int]) -> list[Turn] | None:
        """Return these turns of a session; None if they are gone."""
        turns = {n: self._known[session, n] for n in numbers if (session, n) in self._known}
        missing = [n for n in numbers if n not in turns]
        read = await self._sessions.turns(*session, missing)
        if read is None:
            return None
        turns |= zip(missing, read, strict=True)
        for number in numbers:
            self.remember(session, number, turns[number])
        return [turns[number] for number in numbers]

    def remember(self, session: Session, number: int, turn: Turn) -> None:
        if (session, number) not in self._known:
            self._bytes += _size(turn)
        self._known[session, number] = turn
        self._known.move_to_end((session, number))
        while self._bytes > self._most:
            self._bytes -= _size(self._known.popitem(last=False)[1])


def _size(turn: Turn) -> int:
    tokens = len(turn.added) + len(turn.token_ids) + len(turn.logprobs)
    return tokens + len(turn.sampling_mask or b"") + OTHER_BYTES
