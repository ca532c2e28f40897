"""Every error as an RFC 9457 problem document (`application/problem+json`).

`detail` is one sentence for a person: the thing, the value, the way out. Where several things are
wrong at once, `problems` lists them with their place. Nothing internal is ever shown: an
unexpected error is logged here with its trace and answered with a number to find it by.
"""

import errno
import uuid
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from services.datasets import DatasetError, UnsupportedFormat
from services.logs import get_logger

MEDIA_TYPE = "application/problem+json"
STORAGE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO}
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
RETRY_AFTER = 2
"""Seconds a client should wait while Redis is away."""

log = get_logger(__name__)


class ProblemItem(BaseModel):
    """One thing that is wrong."""

    path: str = Field(description="Key path, e.g. `training.max_steps`; empty: the whole.")
    message: str


class ProblemDocument(BaseModel):
    """RFC 9457 problem details."""

    type: str = "about:blank"
    title: str = Field(description="The status in words.")
    status: int
    detail: str = Field(description="What went wrong, and the way out.")
    instance: str = Field(description="The request's path.")
    problems: list[ProblemItem] = Field(
        default_factory=list, description="Each thing that is wrong, where it stands."
    )


class Problem(Exception):
    """Raise it anywhere in a request to answer with a problem document."""

    def __init__(
        self,
        status: int,
        detail: str,
        problems: list[tuple[str, str]] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.problems = problems or []
        self.headers = headers


class BodyTooLarge(HTTPException):
    """Raised while a body is read. An HTTPException, since FastAPI lets only those through."""

    def __init__(self, limit: int, setting: str) -> None:
        super().__init__(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"the request is larger than {_size(limit)}: split it, or raise the limit ({setting})",
        )


def install(app: FastAPI) -> None:
    """Have every error of `app` answered as a problem document."""
    for error, handler in (
        (Problem, _problem),
        (HTTPException, _http),
        (RequestValidationError, _validation),
        (DatasetError, _dataset),
        (RedisError, _redis),
        (OSError, _storage),
        (Exception, _unexpected),
    ):
        app.add_exception_handler(error, handler)


def answer(
    request: Request,
    status: int,
    detail: str,
    problems: list[tuple[str, str]] | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """The problem document as a response."""
    document = ProblemDocument(
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        instance=request.url.path,
        problems=[ProblemItem(path=path, message=text) for path, text in problems or []],
    )
    body = document.model_dump()
    if not body["problems"]:
        del body["problems"]
    return JSONResponse(body, status, dict(headers or {}), MEDIA_TYPE)


RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "What is wrong with the request", "model": ProblemDocument},
    "5XX": {"description": "What is wrong here", "model": ProblemDocument},
}


def described(schema: dict[str, Any]) -> dict[str, Any]:
    """The OpenAPI document with the media type that problems have; FastAPI knows only its own."""
    for operations in schema["paths"].values():
        for operation in operations.values():
            for status in RESPONSES:
                content = operation["responses"].get(status, {}).get("content", {})
                if "application/json" in content:
                    content[MEDIA_TYPE] = content.pop("application/json")
    return schema


async def _problem(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Problem)
    return answer(request, error.status, error.detail, error.problems, error.headers)


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    detail = str(error.detail)
    if error.status_code == HTTPStatus.NOT_FOUND and detail == "Not Found":
        detail = f"there is nothing at {request.url.path}; the API is described at /docs"
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        # Starlette names the methods of the first route alone that has this path.
        methods = {m for m in METHODS if _takes(request, m)}
        allowed = ", ".join(sorted(methods))
        detail = f"{request.url.path} does not take {request.method}; it takes {allowed}"
        return answer(request, error.status_code, detail, headers={"Allow": allowed})
    return answer(request, error.status_code, detail, headers=error.headers)


def _takes(request: Request, method: str) -> bool:
    scope = {**request.scope, "method": method}
    return any(route.matches(scope)[0] is Match.FULL for route in request.app.router.routes)


async def _validation(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    problems = []
    for item in error.errors():
        if item["type"] == "json_invalid":
            reason = item.get("ctx", {}).get("error", "")
            detail = f"the body is not JSON: {reason} at character {item['loc'][-1]}"
            return answer(request, HTTPStatus.BAD_REQUEST, detail)
        where = [str(part) for part in item["loc"]]
        path = ".".join(where[1:] if where[:1] == ["body"] else where)
        if item["type"] == "model_attributes_type" and isinstance(item.get("input"), bytes):
            detail = "send JSON, with the header Content-Type: application/json (curl --json)"
            return answer(request, HTTPStatus.UNSUPPORTED_MEDIA_TYPE, detail)
        message = {"missing": "is required", "extra_forbidden": "is not known here"}.get(
            item["type"], item["msg"].removeprefix("Value error, ")
        )
        problems.append((path, message))
    count = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
    detail = f"the request cannot be used: it has {count}"
    return answer(request, HTTPStatus.UNPROCESSABLE_ENTITY, detail, problems)


async def _dataset(request: Request, error: Exception) -> JSONResponse:
    unsupported = isinstance(error, UnsupportedFormat)
    status = HTTPStatus.UNSUPPORTED_MEDIA_TYPE if unsupported else HTTPStatus.UNPROCESSABLE_ENTITY
    return answer(request, status, str(error))


async def _redis(request: Request, error: Exception) -> JSONResponse:
    away = isinstance(error, RedisConnectionError | RedisTimeoutError)
    detail = (
        "Redis cannot be reached: runs go on where they can; try again in a moment"
        if away
        else f"Redis refused: {error}"
    )
    log.warning("redis failed", path=request.url.path, error=type(error).__name__)
    return answer(
        request,
        HTTPStatus.SERVICE_UNAVAILABLE,
        detail,
        headers={"Retry-After": str(RETRY_AFTER)},
    )


async def _storage(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, OSError)
    if error.errno not in STORAGE_ERRORS:
        return await _unexpected(request, error)
    log.error("data volume failed", path=request.url.path, error=str(error))
    return answer(
        request,
        HTTPStatus.INSUFFICIENT_STORAGE,
        f"the data volume cannot be used: {error.strerror}",
    )


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    number = uuid.uuid4().hex[:8]
    # The server logs the trace itself, after this line.
    log.error("unexpected error", path=request.url.path, number=number, error=repr(error))
    detail = f"something broke here; the gateway's log has it under {number}"
    return answer(request, HTTPStatus.INTERNAL_SERVER_ERROR, detail)


def _size(count: int) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count / factor:.4g} {unit}"
    return f"{count} bytes"
