"""Answers with an ETag, which a client downloads again only after a change."""

from collections.abc import Callable
from typing import Any

import xxhash
from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel

UNCHANGED: dict[int | str, dict[str, Any]] = {
    304: {"description": "The same as the answer whose `ETag` is sent as `If-None-Match`"}
}


def unless_unchanged(request: Request, answer: BaseModel) -> Response:
    """Return `answer` as JSON with an `ETag`, or 304 without a body if the client has it
    already."""
    body = answer.model_dump_json().encode()
    return unless_tagged(request, body, lambda: body)


def has_answer(request: Request, tag: str) -> bool:
    """Return whether the client has the answer with this `ETag`."""
    return tag in request.headers.get("if-none-match", "")


def unless_tagged(request: Request, state: bytes, body: Callable[[], bytes]) -> Response:
    """Return the JSON of `body`, which changes only with `state`, with an `ETag`; or 304 if the
    client has it already, without a call of `body`."""
    tag = f'"{xxhash.xxh3_64_hexdigest(state)}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if has_answer(request, tag):
        return Response(status_code=304, headers=headers)
    return Response(body(), media_type="application/json", headers=headers)
