"""Answers every error with an RFC 9457 problem document (`application/problem+json`).

`detail` is one sentence for a person: the thing, the value, the way out. If several things are
wrong, `problems` lists them with their place. Internal details and the request's body stay out of
the document: an unexpected error is logged here and answered with a number for the log.
"""

import json
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.routing import Match

from headrace.nearest import nearest
from services.contracts.config.parsing.errors import place_in_config
from services.contracts.config.parsing.type_tags import fields_of, models_of
from services.contracts.wrong_values import wrong_value
from services.runtime.logs import get_logger

MEDIA_TYPE = "application/problem+json"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
MAX_DETAIL = 4000
"""Characters of a sentence: it quotes what was sent, which may be megabytes."""
MAX_LISTED = 50
"""Problems listed in one document; a request may have thousands."""

Handler = Callable[[Request, Exception], Awaitable[Response]]

log = get_logger(__name__)


class ProblemItem(BaseModel):
    """One thing that is wrong."""

    path: str = Field(description="Key path, e.g. `training.max_steps`; empty: the whole.")
    message: str = Field(description="What is wrong there, and the way out.")
    item: str | None = Field(
        None, description="The id of the item it is about, where the request has items."
    )


class ProblemDocument(BaseModel):
    """RFC 9457 problem details."""

    type: str = Field("about:blank", description="Always this: `status` says the kind.")
    title: str = Field(description="The status in words.")
    status: int = Field(description="The HTTP status.")
    detail: str = Field(description="What went wrong, and the way out.")
    instance: str = Field(description="The request's path.")
    problems: list[ProblemItem] | None = Field(
        None, description=f"Each thing that is wrong, where it stands: the first {MAX_LISTED}."
    )


CLIENT_GONE = 499
"""The status of an answer that nobody reads, as in nginx."""


class Problem(Exception):
    """An error that is answered with a problem document, wherever in a request it is raised."""

    def __init__(
        self,
        status: int,
        detail: str,
        problems: Iterable[ProblemItem | tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """A pair among `problems` is (path, message)."""
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.problems = [
            ProblemItem(path=problem[0], message=problem[1])
            if isinstance(problem, tuple)
            else problem
            for problem in problems
        ]
        self.headers = headers

    def response(self, path: str) -> Response:
        document = ProblemDocument(
            title=HTTPStatus(self.status).phrase,
            status=self.status,
            detail=self.detail[:MAX_DETAIL],
            instance=path[:MAX_DETAIL],
            problems=[_short(problem) for problem in self.problems[:MAX_LISTED]] or None,
        )
        # ASCII with escapes: a quote from a bad request may be invalid Unicode.
        body = json.dumps(document.model_dump(exclude_none=True))
        return Response(body, self.status, dict(self.headers or {}), MEDIA_TYPE)


def _short(problem: ProblemItem) -> ProblemItem:
    cut = {"path": problem.path[:MAX_DETAIL], "message": problem.message[:MAX_DETAIL]}
    return problem.model_copy(update=cut)


def answer(
    request: Request,
    status: int,
    detail: str,
    problems: Iterable[ProblemItem | tuple[str, str]] = (),
    headers: Mapping[str, str] | None = None,
) -> Response:
    return Problem(status, detail, problems, headers).response(request.url.path)


def install(app: FastAPI, more: Mapping[type[Exception], Handler] | None = None) -> None:
    """Make `app` answer every error with a problem document. `more` has the service's own errors
    and their handlers."""
    handlers: dict[type[Exception], Handler] = {
        Problem: _problem,
        HTTPException: _http,
        RequestValidationError: _validation,
        Exception: unexpected,
    }
    for error, handler in {**handlers, **(more or {})}.items():
        app.add_exception_handler(error, handler)


def responses(described: Mapping[int | str, str]) -> dict[int | str, dict[str, Any]]:
    """Return the meaning of each status (400, "4XX") for the OpenAPI document."""
    return {
        status: {"description": text, "model": ProblemDocument}
        for status, text in described.items()
    }


def described(schema: dict[str, Any]) -> dict[str, Any]:
    """Give the problems in the OpenAPI document `schema` their media type, since FastAPI writes
    its own there. Changes and returns `schema`."""
    reference = {"$ref": f"#/components/schemas/{ProblemDocument.__name__}"}
    for operations in schema["paths"].values():
        for operation in operations.values():
            for response in operation["responses"].values():
                content = response.get("content", {})
                for media_type in [
                    m for m, what in content.items() if what.get("schema") == reference
                ]:
                    content[MEDIA_TYPE] = content.pop(media_type)
    return schema


def summary(problems: Sequence[ProblemItem], count: int | None = None) -> str:
    """Return the first problem in full, and the number of others among `count` (default: these)."""
    first = problems[0]
    item = f" (item {first.item!r})" if first.item else ""
    place = f"{first.path}{item}: " if first.path else ""
    others = (len(problems) if count is None else count) - 1
    more = f"; and {others:,} more" if others else ""
    return f"{place}{first.message}{more}"


async def _problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return error.response(request.url.path)


async def _http(request: Request, error: Exception) -> Response:
    """Answer an error of the framework: an unknown path, a wrong method, an unreadable body."""
    assert isinstance(error, HTTPException)
    detail, path = str(error.detail), request.url.path[:200]
    if error.status_code == HTTPStatus.NOT_FOUND and detail == "Not Found":
        detail = f"there is nothing at {path}; the API is described at /docs"
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        # Starlette names the methods of only the first route with this path.
        allowed = ", ".join(sorted({m for m in METHODS if _takes(request, m)}))
        detail = f"{path} does not take {request.method}; it takes {allowed}"
        return answer(request, error.status_code, detail, headers={"Allow": allowed})
    elif error.status_code == HTTPStatus.BAD_REQUEST and detail.startswith("There was an error"):
        detail = (
            "the body cannot be read: it must be JSON in UTF-8, not nested hundreds of levels "
            "deep, or a form as its Content-Type says"
        )
    return answer(request, error.status_code, detail, headers=error.headers)


def _takes(request: Request, method: str) -> bool:
    scope = {**request.scope, "method": method}
    return any(route.matches(scope)[0] is Match.FULL for route in request.app.router.routes)


async def _validation(request: Request, error: Exception) -> Response:
    """Answer a body, form or query that does not fit its model."""
    assert isinstance(error, RequestValidationError)
    problems = []
    details = error.errors()
    for item in details[:MAX_LISTED]:
        if item["type"] == "json_invalid":
            # Its location is the offset in the body, not a field.
            reason = item.get("ctx", {}).get("error", "")
            detail = f"the body is not JSON: {reason} at character {item['loc'][-1]}"
            return answer(request, HTTPStatus.BAD_REQUEST, detail)
        if item["type"] == "model_attributes_type" and isinstance(item.get("input"), bytes):
            detail = "send JSON, with the header Content-Type: application/json (curl --json)"
            return answer(request, HTTPStatus.UNSUPPORTED_MEDIA_TYPE, detail)
        if item["type"] == "missing" and tuple(item["loc"]) == ("body",):
            detail = "the request has no body: send JSON"
            return answer(request, HTTPStatus.UNPROCESSABLE_ENTITY, detail)
        where = [str(part) for part in item["loc"]]
        message = wrong_value(item)
        if item["type"] == "extra_forbidden" and (names := _known_beside(request, where)):
            near = nearest(where[-1], names)
            if near is None and "config" in names:
                # A key of a run's config that the request has outside its `config`.
                near = place_in_config(where[-1])
            meant = f"did you mean {near!r}?" if near else f"known here: {', '.join(names)}"
            message = f"unknown key; {meant}"
        path = ".".join(where[1:] if where[:1] == ["body"] else where)
        problems.append(ProblemItem(path=path, message=message))
    detail = f"the request cannot be used: {summary(problems, len(details))}"
    return answer(request, HTTPStatus.UNPROCESSABLE_ENTITY, detail, problems)


def _known_beside(request: Request, where: list[str]) -> list[str]:
    """The keys that the place of an unknown key may have, by the models of the request's body;
    empty for a place that is not known."""
    dependant = getattr(request.scope.get("route"), "dependant", None)
    bodies = [parameter.field_info for parameter in getattr(dependant, "body_params", [])]
    models = [model for body in bodies for model in models_of(body.annotation)]
    for part in where[1:-1]:
        fields = [fields_of(model)[part] for model in models if part in fields_of(model)]
        inside = [model for field in fields for model in models_of(field.annotation)]
        models = inside if fields else models
    return sorted({name for model in models for name in fields_of(model)})


async def unexpected(request: Request, error: Exception) -> Response:
    """Answer an unexpected error: the log has the trace, the client gets its number."""
    number = uuid.uuid4().hex[:8]
    # The server logs the trace itself, after this line.
    log.error("unexpected error", path=request.url.path, number=number, error=repr(error))
    detail = f"something broke here; the service's log has it under {number}"
    # uvicorn closes the connection after an error.
    headers = {"Connection": "close"}
    return answer(request, HTTPStatus.INTERNAL_SERVER_ERROR, detail, headers=headers)
