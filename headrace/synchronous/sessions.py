"""Sessions that an agent plays, and the groups that they come in. `make client` makes this file (deploy/client_code.py)."""
# ruff: noqa: E501

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from headrace import operations
from headrace.errors import HeadraceError
from headrace.models import LeasedGroup, LeasedSession, OpenAIAnswer, OpenedSession
from headrace.request import reward_body, turns_of
from headrace.synchronous.connection import Connection


class Session:
    """A conversation that a run trains. Clients of OpenAI's API take `base_url` and `key`.

    As a context manager a session ends with its block. If the block raises, the session is not
    trained."""

    def __init__(self, client: Connection, record: LeasedSession | OpenedSession) -> None:
        self._client = client
        self.record = record

    @property
    def id(self) -> str:
        """Its id."""
        return self.record.id

    @property
    def base_url(self) -> str:
        """The base URL for a client of OpenAI's API."""
        return self.record.base_url

    @property
    def key(self) -> str:
        """The key for that client. It permits the calls of this session alone, until its end."""
        return self.record.key

    def chat(self, messages: str | Sequence[Mapping[str, Any]], **options: Any) -> OpenAIAnswer:
        """Play a turn without a client of OpenAI's API. A text is the turn of a user. `options`:
        tools, stop, seed, max_tokens."""
        body = {"messages": turns_of(messages), **options}
        request = operations.session_chat_completions_create(session=self.id, body=body)
        return self._client.send(request)

    def reward(self, reward: float | Mapping[str, float]) -> float | None:
        """Say what the session has earned: a number, or the parts of a sum by name. Return what
        counts, which is the session's first reward."""
        request = operations.sessions_reward(session=self.id, body=reward_body(reward))
        return (self._client.send(request)).reward

    def fail(self, reason: str) -> None:
        """Say that the session has no reward: it is not trained. A reward that was sent before
        still counts."""
        body = {"reward": None, "error": reason[:1000]}
        self._client.send(operations.sessions_reward(session=self.id, body=body))

    def end(self) -> int:
        """End the session. Return its number of turns: without one it is not trained. If it has no
        reward, the run's verifiers score it."""
        return (self._client.send(operations.sessions_end(session=self.id))).turns

    def __enter__(self) -> "Session":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.end()
            return
        # The block's own error says more than that the session is over, too.
        with suppress(HeadraceError):
            self.fail(f"{type(error).__name__}: {error}")
            self.end()

    def __repr__(self) -> str:
        return f"<Session {self.id}>"


class Group:
    """A row of a run's dataset, or a prompt, that is leased to an agent: a session for each
    completion. The group is trained when the last one has ended.

    As a context manager a group is released if its block raises: the row is leased again at
    once."""

    def __init__(self, client: Connection, run: str, record: LeasedGroup) -> None:
        self._client, self._run = client, run
        self.record = record
        self.sessions = [Session(client, each) for each in record.sessions]

    @property
    def prompt(self) -> str | list[dict[str, Any]]:
        """The row's prompt: a text, or messages."""
        return self.record.prompt

    @property
    def answer(self) -> Any:
        """The row's reference answer."""
        return self.record.answer

    @property
    def columns(self) -> dict[str, Any]:
        """Other columns of the row."""
        return self.record.columns

    def release(self) -> None:
        """Release the group, which is not played on."""
        request = operations.groups_release(run=self._run, attempt=self.record.attempt)
        self._client.send(request)

    def __enter__(self) -> "Group":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            with suppress(HeadraceError):
                self.release()

    def __repr__(self) -> str:
        return f"<Group of row {self.record.row}: {len(self.sessions)} sessions>"
