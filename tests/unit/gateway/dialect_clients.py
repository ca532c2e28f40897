"""The vendors' own clients, answered in this process: requests become calls as the gateway makes
them, and answers are what the policy is said to have written."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import httpx2

from services.contracts.policy_calls import Piece
from services.contracts.sessions import Call, chat_histories
from services.gateway.openai.answers import TurnRequest
from services.gateway.openai.errors import SessionProblem
from services.gateway.openai.requests import chat_call
from services.gateway.sessions.histories import beginnings, request_digest
from tests.unit.gateway.session_calls import SAMPLING


def piece(message: dict[str, Any], **more: Any) -> Piece:
    """A whole answer."""
    whole = {"role": "assistant", "content": None} | message
    given: dict[str, Any] = {
        "finish_reason": "stop",
        "prompt_tokens": 7,
        "sampled_tokens": 3,
    } | more
    return Piece(message=whole, **given)


class Policy:
    """Answers requests of one API with `answers`, one after the other. Each continues the
    conversation of the answer before it, or `continues` has a False for it."""

    def __init__(
        self,
        read: Callable[[Mapping[str, Any]], TurnRequest],
        *answers: Piece,
        sampling: Mapping[str, Any] = SAMPLING,
    ) -> None:
        self._read, self._answers, self._sampling = read, list(answers), sampling
        self._history = ""
        self.calls: list[Call] = []
        self.continues: list[bool] = []

    @property
    def http(self) -> httpx2.Client:
        """For the client's option `http_client`."""
        return httpx2.Client(transport=httpx2.MockTransport(self._answered))

    def _answered(self, sent: httpx2.Request) -> httpx2.Response:
        try:
            request = self._read(json.loads(sent.content))
            call = chat_call(request.body, self._sampling)
        except SessionProblem as problem:
            response = problem.response(sent.url.path)
            headers = {"content-type": "application/json"}
            return httpx2.Response(problem.status, headers=headers, content=bytes(response.body))
        self.calls.append(call)
        self.continues.append(self._history in [history for _, history in beginnings(call, [])])
        answer = self._answers.pop(0)
        said = answer.message or {"role": "assistant", "content": answer.text}
        self._history = chat_histories(call.tools, [*call.messages, said])[-1]
        writer = request.writer(request_digest(call), 1_800_000_000, "run")
        if not request.streams:
            return httpx2.Response(200, json=writer.whole([answer]))
        events = b"".join((*writer.begin(), *writer.events(answer)))
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=events)
