"""The one way to page: a request has `limit` and `cursor`, its answer has `next`, the cursor of the
next page.

A cursor holds the place of the last entry that was shown, so entries that come or go meanwhile do
not shift a page. Clients send it back as it is.
"""

import base64
import binascii
import json
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Annotated, TypeVar

from fastapi import Query
from pydantic import Field

from services.http import Problem

T = TypeVar("T")
Place = tuple[str | int | float, ...]
MOST = 1000
"""Entries of a page, at most, unless a route says otherwise."""

Cursor = Annotated[
    str | None,
    Query(max_length=1000, description="`next` of the page before. Default: the first page."),
]
Limit = Annotated[int, Query(ge=1, le=MOST, description="Entries of a page, at most.")]
Next = Annotated[
    str | None, Field(description="`cursor` of the next page. Null: this is the last page.")
]


def page_of(
    entries: Iterable[T], place: Callable[[T], Place], limit: int, cursor: str | None
) -> tuple[list[T], str | None]:
    """Return the page behind `cursor` of all entries, and the cursor of the next page. The entries
    are in the ascending order of their places. Raises Problem 422 for a cursor of another list."""
    after = None if cursor is None else place_in(cursor)
    try:
        following = [entry for entry in entries if after is None or place(entry) > after]
    except TypeError:
        raise unknown_cursor(str(cursor)) from None
    page = following[:limit]
    return page, cursor_at(place(page[-1])) if len(following) > limit else None


def cursor_at(place: Place) -> str:
    """Return the cursor of the page behind a place."""
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


def place_in(cursor: str) -> Place:
    """Return the place in a cursor. Raises Problem 422 for a text that is no cursor."""
    try:
        padded = cursor.encode() + b"=" * (-len(cursor) % 4)
        place = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, RecursionError):
        raise unknown_cursor(cursor) from None
    parts = place if isinstance(place, list) else [None]
    if not all(isinstance(part, str | int | float) for part in parts):
        raise unknown_cursor(cursor)
    return tuple(parts)


def number_in(cursor: str | None, default: int) -> int:
    """Return the number that is the place in a cursor; `default` is the place of the first page.
    Raises Problem 422."""
    if cursor is None:
        return default
    place = place_in(cursor)
    if len(place) != 1 or type(place[0]) is not int or place[0] < 0:
        raise unknown_cursor(cursor)
    return place[0]


def unknown_cursor(cursor: str) -> Problem:
    """Return a 422 that says where cursors come from."""
    message = (
        f"{cursor[:100]!r} is no cursor of this list: send the `next` of the page before, or no "
        "cursor for the first page"
    )
    detail = f"the request cannot be used: query.cursor: {message}"
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, detail, [("query.cursor", message)])
