"""Every error as an RFC 9457 problem document, in the shape that the gateway's have.

`detail` is one sentence for a person: the thing, the value, the way out; `problems` lists what is
wrong, each with its place. Never shows a traceback, and never echoes a body back.
"""

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

MEDIA_TYPE = "application/problem+json"
MAX_LISTED = 20


class ProblemItem(BaseModel):
    """One thing that is wrong."""

    path: str = Field(description="Key path, e.g. `items.3.params.strict`; empty: the whole.")
    message: str
    item: str = Field("", description="The id of the item it is about, where there is one.")


class ProblemDocument(BaseModel):
    """RFC 9457 problem details."""

    type: str = "about:blank"
    title: str = Field(description="The status in words.")
    status: int
    detail: str = Field(description="What went wrong, and the way out.")
    instance: str = Field("", description="The request's path.")
    problems: list[ProblemItem] = Field(
        default_factory=list,
        description=f"What is wrong, where it stands: the first {MAX_LISTED}.",
    )


class ProblemError(Exception):
    """Raise it to answer with a problem document."""

    def __init__(
        self,
        status: int,
        detail: str,
        problems: Sequence[ProblemItem] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.problems = problems
        self.headers = headers

    def response(self, path: str) -> Response:
        """As the HTTP response to a request of `path`."""
        body = ProblemDocument(
            title=HTTPStatus(self.status).phrase,
            status=self.status,
            detail=self.detail,
            instance=path,
            problems=list(self.problems[:MAX_LISTED]),
        ).model_dump()
        if not body["problems"]:
            del body["problems"]
        # ASCII with escapes: what is quoted from a bad request may be no Unicode.
        return Response(json.dumps(body), self.status, dict(self.headers or {}), MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Have every error of `app` answered as a problem document."""
    for error, handler in (
        (ProblemError, _problem),
        (HTTPException, _http),
        (RequestValidationError, _validation),
        (Exception, _unexpected),
    ):
        app.add_exception_handler(error, handler)


def responses(described: Mapping[int, str]) -> dict[int | str, dict[str, Any]]:
    """For the OpenAPI document: what each status means."""
    return {
        status: {"description": text, "model": ProblemDocument, "content": {MEDIA_TYPE: {}}}
        for status, text in described.items()
    }


async def _problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, ProblemError)
    return error.response(request.url.path)


async def _http(request: Request, error: Exception) -> Response:
    """What the framework refuses: an unknown path, a wrong method, a body that cannot be read."""
    assert isinstance(error, HTTPException)
    detail = {
        HTTPStatus.NOT_FOUND: f"there is nothing at {request.url.path[:200]}; see /docs",
        HTTPStatus.METHOD_NOT_ALLOWED: f"{request.url.path} does not take {request.method}",
        HTTPStatus.BAD_REQUEST: "the body cannot be read: it must be JSON in UTF-8, and not nested "
        "hundreds of levels deep",
    }.get(HTTPStatus(error.status_code), str(error.detail))
    problem = ProblemError(error.status_code, detail, headers=error.headers)
    return problem.response(request.url.path)


async def _validation(request: Request, error: Exception) -> Response:
    """A body that does not fit its model."""
    assert isinstance(error, RequestValidationError)
    problems = []
    for item in error.errors():
        if item["type"] == "json_invalid":
            # Its location is the offset in the body, not a field.
            reason = item.get("ctx", {}).get("error", "")
            detail = f"the body is not JSON: {reason} at character {item['loc'][-1]}"
            return ProblemError(400, detail).response(request.url.path)
        if item["type"] == "model_attributes_type" and isinstance(item.get("input"), bytes):
            detail = "send JSON, with the header Content-Type: application/json (curl --json)"
            return ProblemError(415, detail).response(request.url.path)
        message = {"missing": "is required", "extra_forbidden": "is not known here"}.get(
            item["type"], item["msg"].removeprefix("Value error, ")
        )
        path = ".".join(str(part) for part in item["loc"] if part != "body")
        problems.append(ProblemItem(path=path, message=message))
    return ProblemError(422, summary(problems), problems).response(request.url.path)


async def _unexpected(request: Request, error: Exception) -> Response:
    """Our own mistake: the traceback goes to the log, not to the client."""
    detail = f"{type(error).__name__} while handling {request.url.path}; the log says more"
    return ProblemError(500, detail).response(request.url.path)


def summary(problems: Sequence[ProblemItem]) -> str:
    """The first problem in full, and how many more there are."""
    first = problems[0]
    item = f" (item {first.item!r})" if first.item else ""
    place = f"{first.path}{item}: " if first.path else ""
    more = f"; and {len(problems) - 1} more" if len(problems) > 1 else ""
    return f"{place}{first.message}{more}"
