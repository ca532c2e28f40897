"""ASGI middleware that checks a body before a route reads it: JSON that can be written again, or a
form in UTF-8.

It checks every string of every route. Path, query and headers are valid already: the server never
decodes them to half of a surrogate pair. Names are checked in their models.
"""

from email.message import Message as ContentType
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.contracts.strict_json import NotJSON, NotPortable, decode
from services.http.problems import Problem


class StrictBodies:
    """Answers 400, 415 or 422 to invalid bodies."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request with a JSON body or a form; others pass through."""
        kind = _content_type(scope)
        if kind.get_content_maintype() == "multipart":
            if problem := _form_problem(kind):
                await problem.response(scope["path"])(scope, receive, send)
                return
        elif kind.get_content_subtype().endswith("json"):
            body, gone = await read_body(receive)
            if problem := None if gone else _json_problem(body):
                await problem.response(scope["path"])(scope, receive, send)
                return
            receive = replayed_body(body, gone, receive)
        await self.app(scope, receive, send)


def _content_type(scope: Scope) -> ContentType:
    message = ContentType()
    headers = Headers(scope=scope) if scope["type"] == "http" else {}
    message["content-type"] = headers.get("content-type", "text/plain")
    return message


def _form_problem(kind: ContentType) -> Problem | None:
    # The framework decodes with whatever codec is named: some codecs make surrogates, or fail.
    if str(kind.get_param("charset", "utf-8")).lower() in ("utf-8", "utf8", "us-ascii"):
        return None
    return Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send the form in UTF-8, and name no charset")


def _json_problem(body: bytes) -> Problem | None:
    if not body:
        return None
    try:
        decode(body)
    except NotPortable as error:
        detail = f"the request cannot be used: {error}"
        problems = [(error.place, error.problem)]
        return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, detail, problems)
    except NotJSON as error:
        return Problem(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {error}")
    return None


async def read_body(receive: Receive) -> tuple[bytes, bool]:
    """Return the whole body, and whether the client disconnected before its end."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b"".join(parts), True
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts), False


def replayed_body(body: bytes, gone: bool, receive: Receive) -> Receive:
    """Return a `receive` that yields the body again."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": gone}]
    if gone:
        messages.append({"type": "http.disconnect"})

    async def next_message() -> Message:
        return messages.pop(0) if messages else await receive()

    return next_message
