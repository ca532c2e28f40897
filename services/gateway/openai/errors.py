"""Errors in the format of OpenAI's API: of sessions, of the policy's endpoint, and of the
fine-tuning API; or in the format of Anthropic's for its Messages. Their clients show the
message."""

import json
from http import HTTPStatus
from typing import Any

from fastapi.responses import Response
from pydantic import BaseModel, Field
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.http import Problem
from services.http.problems import MEDIA_TYPE

BELOW = "/v1/sessions/"
"""Paths of sessions."""
POLICY = ("/v1/chat/", "/v1/completions", "/v1/messages", "/v1/models", "/v1/responses")
"""Paths of the policy as an endpoint."""
FINE_TUNING = "/openai/v1/"
"""Paths of the fine-tuning API."""
MESSAGES = ("/v1/messages", "/v1/messages/count_tokens")
"""Ends of the paths of Anthropic's API."""
MAX_MESSAGE = 2000
ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Anthropic's types of errors, by status. Others below 500 are `invalid_request_error`."""
ENDED = {
    "full": "this session has all of its rollout.episode.max_turns turns, or as many bytes of "
    "them as it may have; or four times as many of its calls were refused or got no tokens",
    "gone": "this session does not exist, or ended more than an hour ago",
    "lapsed": "this session's lease has lapsed: no call came for rollout.episode.idle_seconds, its "
    "group was not handed in for as long, or its run has ended",
    "released": "this session's group was released by its client",
    "stale": "this session is stale: the policy has moved on by more than rollout.max_staleness "
    "versions since its group's oldest token",
    "ended": "this session has ended",
    "completed": "this session has ended, and its group is completed",
    "filtered": "this session has ended, and its group is filtered (algorithm.dynamic_sampling)",
    "unrewarded": "this session has ended and is not trained: its reward did not come within "
    "data.reward_deadline, or it was given none",
    "failed": "this session has ended, and its group could not be completed",
}
WAY_OUT = (
    "; lease another group with POST /v1/runs/RUN/groups/lease, or open another session with POST "
    "/v1/runs/RUN/sessions"
)


class OpenAIError(BaseModel):
    """An error in the format of OpenAI's API."""

    message: str = Field(description="What went wrong, and the way out.")
    type: str = Field(description="`invalid_request_error` or `server_error`.")
    param: str | None = Field(description="What of the request is at fault.")
    code: str | None = Field(description="The kind of error, for programs.")


class OpenAIErrorDocument(BaseModel):
    """An error of a session's route."""

    error: OpenAIError = Field(description="What is wrong.")


def openai_errors(descriptions: dict[int | str, str]) -> dict[int | str, dict[str, Any]]:
    """Return the meaning of each status, and of any other, for the OpenAPI document."""
    described = descriptions | {
        "4XX": "What is wrong with the request",
        "5XX": "What is wrong here",
    }
    return {
        status: {"description": text, "model": OpenAIErrorDocument}
        for status, text in described.items()
    }


class SessionProblem(Problem):
    """A refused call of a session. `param` names the part of the request that is at fault."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers=headers)
        self.param, self.code = param, code

    @property
    def error(self) -> dict[str, str | None]:
        """Return the error in the format of OpenAI's API."""
        client = self.status < HTTPStatus.INTERNAL_SERVER_ERROR
        return {
            "message": self.detail[:MAX_MESSAGE],
            "type": "invalid_request_error" if client else "server_error",
            "param": self.param,
            "code": self.code,
        }

    def response(self, path: str) -> Response:
        """Return the response in the format of the API that the request's path belongs to."""
        # OpenAI's clients retry 409, unless a header tells them not to.
        headers = {"x-should-retry": "false"} if self.status == HTTPStatus.CONFLICT else {}
        document: dict[str, Any] = {"error": self.error}
        if path.rstrip("/").endswith(MESSAGES):
            document = {"type": "error", "error": anthropic_error(self.status, self.detail)}
        body = json.dumps(document)
        return Response(body, self.status, headers | dict(self.headers or {}), "application/json")


def anthropic_error(status: int, message: str) -> dict[str, str]:
    """Return an error in the format of Anthropic's API."""
    client = status < HTTPStatus.INTERNAL_SERVER_ERROR
    other = "invalid_request_error" if client else "api_error"
    return {"type": ANTHROPIC_TYPES.get(status, other), "message": message[:MAX_MESSAGE]}


def over(reason: str) -> SessionProblem:
    """Return 409 for a session that has ended for the store's `reason`."""
    message = ENDED.get(reason, f"this session has ended ({reason})")
    return SessionProblem(HTTPStatus.CONFLICT, message + WAY_OUT, code=f"session_{reason}")


class OpenAIErrors:
    """ASGI middleware for the paths of OpenAI's and Anthropic's APIs. It puts errors of other parts
    (limits of bodies, keys, Redis) into the format of the path's API."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or not scope["path"].startswith((BELOW, FINE_TUNING, *POLICY)):
            await self.app(scope, receive, send)
            return
        problem: list[Message] = []

        async def send_in_format(message: Message) -> None:
            if message["type"] == "http.response.start":
                kind = Headers(raw=message["headers"]).get("content-type", "")
                if kind.startswith(MEDIA_TYPE):
                    problem.append(message)
                    return
            if not problem:
                await send(message)
                return
            problem.append(message)
            if not message.get("more_body", False):
                await _translated(problem, scope["path"])(scope, receive, send)

        await self.app(scope, receive, send_in_format)


def _translated(messages: list[Message], path: str) -> Response:
    start, *parts = messages
    document = json.loads(b"".join(part.get("body", b"") for part in parts))
    status, code = start["status"], None
    if path.startswith(FINE_TUNING):
        # OpenAI's API refuses a request with 400, whatever is wrong with it.
        if status == HTTPStatus.UNPROCESSABLE_ENTITY:
            status = HTTPStatus.BAD_REQUEST
        code = "invalid_api_key" if status == HTTPStatus.UNAUTHORIZED else None
    response = SessionProblem(status, document["detail"], code=code).response(path)
    for name, value in Headers(raw=start["headers"]).items():
        if name not in ("content-type", "content-length"):
            response.headers[name] = value
    return response
