"""A small HTTP server, and a session of the OpenAI API on it."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from tests.upstream import Answer, Upstream


@contextmanager
def serving(answer: Callable[[str, Any], Answer]) -> Iterator[str]:
    """Yield the address of a server that answers `answer(path, body)`: a status, and JSON or
    text."""

    def content(path: str, body: Any) -> Answer:
        status, said = answer(path, body)
        return status, said.encode() if isinstance(said, str) else said

    with closing(Upstream(content)) as server:
        yield server.url


class Policy:
    """A session with given answers."""

    def __init__(self, *answers: str | Answer) -> None:
        self.answers = list(answers)
        self.asked: list[list[dict[str, Any]]] = []

    def __call__(self, path: str, body: Any) -> Answer:
        assert path == "/v1/chat/completions"
        self.asked.append(body["messages"])
        said = self.answers.pop(0)
        if not isinstance(said, str):
            return said
        return completion(said)


def completion(text: str, finish_reason: str = "stop") -> Answer:
    """Return a session's answer, with a token for each character."""
    message = {"role": "assistant", "content": text}
    choice = {"message": message, "finish_reason": finish_reason}
    return 200, {"choices": [choice], "usage": {"completion_tokens": len(text)}}


GROUP: dict[str, Any] = {"prompt": "Count.", "answer": "3", "columns": {}, "row": 7, "task": 12}


def session(url: str) -> dict[str, Any]:
    return {"id": "run-attempt-0", "base_url": f"{url}/v1", "key": "hs-1"}
