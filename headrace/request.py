"""Requests as values: what is sent, what the answer becomes, and when to send again. No I/O."""

import random
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from headrace.errors import BadAnswer, refusal

T = TypeVar("T")
Files = Callable[[], Sequence[tuple[str, Any]]]
"""Opens the files of an upload, each with its name. It is called for each attempt."""
LONGEST_PAUSE = 30.0
"""Seconds between two attempts, at most."""
TOO_MANY, CONFLICT, AWAY = 429, 409, (502, 503, 504)


class EventStream:
    """Stands for an answer that does not end: read it with `events`."""


@dataclass(frozen=True)
class Request(Generic[T]):
    """A request whose answer is a `T`."""

    method: str
    template: str
    """The path, with the names of `path` in braces."""
    answer: Any
    """`T` itself, which is no class if there are several."""
    path: Mapping[str, Any] = field(default_factory=dict)
    query: Mapping[str, Any] = field(default_factory=dict)
    header: Mapping[str, str | None] = field(default_factory=dict)
    body: BaseModel | Mapping[str, Any] | None = None
    content: bytes | None = None
    files: Files | None = None
    form: Mapping[str, Any] = field(default_factory=dict)
    is_keyed: bool = False
    """Whether the gateway takes an Idempotency-Key."""
    is_repeatable: bool = False

    @property
    def may_repeat(self) -> bool:
        """Whether a request whose answer was lost may be sent again."""
        return self.is_keyed or self.is_repeatable or self.method in ("GET", "PUT")

    def headers(self) -> dict[str, str]:
        """Return the headers, with a new Idempotency-Key. Make them once for all attempts."""
        headers = {name: value for name, value in self.header.items() if value is not None}
        return headers | ({"Idempotency-Key": str(uuid.uuid4())} if self.is_keyed else {})

    def arguments(self, opened: ExitStack) -> dict[str, Any]:
        """Return what httpx sends, apart from the headers. `opened` closes the files of an
        upload."""
        parts = {key: quote(str(value), safe="") for key, value in self.path.items()}
        if self.template == "/v1/files/{path}":
            parts = {key: quote(str(value), safe="/") for key, value in self.path.items()}
        arguments: dict[str, Any] = {
            "method": self.method,
            "url": self.template.format_map(parts),
            "params": {key: value for key, value in self.query.items() if value is not None},
        }
        if isinstance(self.body, BaseModel):
            arguments["json"] = self.body.model_dump(mode="json", exclude_unset=True)
        elif self.body is not None:
            arguments["json"] = self.body
        if self.content is not None:
            arguments["content"] = self.content
        if self.files is not None:
            arguments["files"] = [("file", file) for file in self.files()]
            for _, (_, file) in arguments["files"]:
                opened.callback(file.close)
        if self.form:
            arguments["data"] = {k: v for k, v in self.form.items() if v is not None}
        return arguments

    def pause(self, attempt: int, response: httpx.Response | None) -> float | None:
        """Return the seconds until the next attempt, or None if there must be none. `response`:
        None if the connection broke."""
        usual = min(LONGEST_PAUSE, 0.25 * 2**attempt) * (0.5 + random.random() / 2)
        if response is None:
            return usual if self.may_repeat else None
        status, seconds = response.status_code, response.headers.get("Retry-After", "")
        # 409 with Retry-After: an earlier attempt is being answered.
        is_early = status == CONFLICT and self.is_keyed and bool(seconds)
        if not (status == TOO_MANY or is_early or (status in AWAY and self.may_repeat)):
            return None
        return min(LONGEST_PAUSE, float(seconds)) if seconds.isdecimal() else usual

    def parsed(self, response: httpx.Response) -> T:
        """Return the answer, or raise the error that it is."""
        if response.is_error:
            raise refusal(response.status_code, response.text, str(response.url))
        if self.answer is str or self.answer is bytes:
            return response.text if self.answer is str else response.content  # type: ignore[return-value]
        if self.answer is None:
            return None  # type: ignore[return-value]
        try:
            return TypeAdapter(self.answer).validate_json(response.content)  # type: ignore[no-any-return]
        except ValidationError as error:
            raise BadAnswer(
                f"the answer of {response.url} is not what this client expects: the versions of "
                f"client and gateway differ, or no gateway answers there ({_first(error)})",
                response.status_code,
            ) from None


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def turns_of(messages: str | Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages in the format of OpenAI's API. A text is the turn of a user."""
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    return [dict(turn) for turn in messages]


def reward_body(reward: float | Mapping[str, float]) -> dict[str, Any]:
    """Return the body of a session's reward: a number, or the parts of a sum by name."""
    return {"components": dict(reward)} if isinstance(reward, Mapping) else {"reward": reward}


def fields_of(lines: Iterable[str]) -> dict[str, str]:
    """Parse the lines of one server-sent event. Comments are skipped."""
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name:
            fields[name] = (
                f"{fields[name]}\n{value}" if name == "data" and name in fields else value
            )
    return fields
