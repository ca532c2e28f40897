"""ASGI middleware for the header `Idempotency-Key`: a repeated request does its work once, and gets
the first answer again, whichever gateway it reaches.

A gateway that dies leaves the key to the next try after a few seconds. That try has the
same seed. Routes make ids from it, so they find what the first try has made.
"""

import asyncio
import hashlib
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.gateway.callers import Caller
from services.gateway.openai.errors import BELOW as SESSIONS
from services.gateway.openai.errors import POLICY
from services.gateway.problems import away
from services.http import Problem, read_body, replayed_body
from services.runtime.logs import get_logger
from services.runtime.tasks import end
from services.store import Store
from services.store.access.idempotency_keys import LAPSE_SECONDS, Answered, Claim, Open

HEADER = "Idempotency-Key"
REPLAYED = "Idempotent-Replayed"
KEY = re.compile(r"[\x21-\x7e]{1,255}")
METHODS = ("POST", "PATCH", "DELETE")
OTHERWISE = re.compile(
    r"/v1/(session|login|preview|datasets(/preview)?|verifiers/[^/]+/score|runs/[^/]+/(sessions|groups)(/.*)?)"
)
"""Paths whose POST repeats safely by other means: an upload by its rows, a session or a group by
its `name`; or makes nothing that lasts."""
SECRET = "/v1/keys"
MOST_BYTES = 1 << 20
"""Bytes of an answer that is kept. A request with a larger answer is worked on again."""
DESCRIPTION = (
    "Makes it safe to send the request again: for 24 hours the same key gets the first answer, "
    f"with `{REPLAYED}: true`, and nothing is done twice. Take a new random key for each request, "
    "such as a UUID. With another request it is refused (422), and so it is while the first is "
    "being answered (409, with `Retry-After`). Keys of other API keys are apart. A request that "
    "was refused may be mended and sent again with its key."
)

log = get_logger(__name__)


@dataclass(frozen=True)
class RequestTry:
    """One try of a request with an Idempotency-Key."""

    seed: str
    """32 hex digits, the same for each try of a request."""
    is_repeated: bool = False
    """Whether an earlier try broke off: it may have done the work."""

    @classmethod
    def of(cls, scope: Scope) -> "RequestTry":
        """Return the try of a request; without the header it is the only one."""
        request_try: RequestTry | None = scope["state"].get("request_try")
        return request_try or cls(secrets.token_hex(16))

    @property
    def id(self) -> str:
        """The id of the record that the request makes: 8 hex digits."""
        return self.seed[:8]


def is_covered(method: str, path: str) -> bool:
    """Return whether a request may carry the header."""
    path = path.rstrip("/")
    if method not in METHODS or not path.startswith("/v1/"):
        return False
    if path.startswith((SESSIONS, *POLICY)):
        return False
    return not (method == "POST" and OTHERWISE.fullmatch(path))


class Idempotency:
    """Answers a request with the header once. Must come after Authentication and BodyLimit."""

    def __init__(self, app: ASGIApp, store_of: Callable[[], Store], data: Path) -> None:
        self.app = app
        self.store_of = store_of
        self.data = data

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = None
        if scope["type"] == "http" and is_covered(scope["method"], scope["path"]):
            key = Headers(scope=scope).get(HEADER)
        if key is None:
            await self.app(scope, receive, send)
            return
        body, gone = await read_body(receive)
        if gone:
            return
        try:
            outcome = await self._outcome(scope, key, body)
        except RedisError:
            outcome = away(self.data)
        except Problem as problem:
            outcome = problem
        if isinstance(outcome, Problem):
            await outcome.response(scope["path"])(scope, receive, send)
            return
        headers = [*outcome.headers]
        await send({"type": "http.response.start", "status": outcome.status, "headers": headers})
        await send({"type": "http.response.body", "body": outcome.body})

    async def _outcome(self, scope: Scope, key: str, body: bytes) -> Answered | Problem:
        if KEY.fullmatch(key) is None:
            return Problem(
                HTTPStatus.BAD_REQUEST,
                f"{HEADER}: send 1 to 255 visible ASCII characters, such as a UUID",
            )
        keys = self.store_of().idempotency_keys
        digest = _digest(Caller.of(scope).digest, key)
        request = _digest(scope["method"], scope["path"], scope["query_string"], body)
        token = secrets.token_hex(8)
        claim = await keys.claim(digest, request, token, secrets.token_hex(16))
        if claim is None:
            return Problem(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                f"{HEADER} {key[:100]!r} was sent with another request: take a new key for each "
                "request, and the same one only to send a request again",
            )
        if isinstance(claim, Open):
            return Problem(
                HTTPStatus.CONFLICT,
                f"the request with {HEADER} {key[:100]!r} is being answered: ask again in a moment",
                headers={"Retry-After": str(max(1, round(claim.seconds)))},
            )
        if isinstance(claim, Answered):
            log.info("answered again", path=scope["path"], status=claim.status)
            replayed = (REPLAYED.lower().encode(), b"true")
            return Answered(claim.status, [*claim.headers, replayed], claim.body)
        scope["state"]["request_try"] = RequestTry(claim.seed, claim.is_repeated)
        return await self._work(scope, body, digest, token, claim)

    async def _work(
        self, scope: Scope, body: bytes, digest: str, token: str, claim: Claim
    ) -> Answered:
        """Have the route answer, and keep a small answer below 300 for repeats. A refusal and a
        redirect free the key for any request. A 5xx, a large answer and an exception end the claim:
        the same request may be sent again."""
        keys = self.store_of().idempotency_keys

        async def prolong() -> None:
            while True:
                await asyncio.sleep(LAPSE_SECONDS / 4)
                try:
                    await keys.renew(digest, token)
                except RedisError as error:
                    log.warning("an Idempotency-Key is not prolonged", error=type(error).__name__)

        prolonging = asyncio.create_task(prolong())
        try:
            answer = await _answered(self.app, scope, body)
            if claim.is_repeated and scope["method"] == "DELETE" and answer.status == 404:
                # The try that broke off had deleted it.
                answer = Answered(HTTPStatus.NO_CONTENT, [], b"")
        except BaseException:
            await end([prolonging])
            await keys.release(digest, token)
            raise
        await end([prolonging])
        try:
            if 300 <= answer.status < 500:
                await keys.forget(digest, token)
            elif answer.status >= 500 or len(answer.body) > MOST_BYTES:
                await keys.release(digest, token)
            else:
                await keys.finish(digest, token, _kept(scope, answer))
        except RedisError as error:
            # The claim lapses, and the next try finds what this one has made.
            log.warning("an answer is not kept", error=type(error).__name__)
        return answer


async def _answered(app: ASGIApp, scope: Scope, body: bytes) -> Answered:
    status, headers, parts = 500, list[tuple[bytes, bytes]](), list[bytes]()

    async def collect(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            headers.extend(message["headers"])
        elif message["type"] == "http.response.body":
            parts.append(message.get("body", b""))

    async def wait() -> Message:
        # The work goes on if the client leaves: it may ask again.
        await asyncio.Event().wait()
        raise AssertionError

    await app(scope, replayed_body(body, False, wait), collect)
    return Answered(status, headers, b"".join(parts))


def _kept(scope: Scope, answer: Answered) -> Answered:
    """Return the answer that later tries get. No secret is kept in Redis."""
    if scope["path"].rstrip("/") != SECRET:
        return answer
    made = Problem(
        HTTPStatus.CONFLICT,
        f"this key was made by the first request with its {HEADER}, and only that answer showed "
        "it. If it is lost, revoke it (GET /v1/keys lists it) and make another",
    ).response(scope["path"])
    return Answered(made.status_code, list(made.raw_headers), bytes(made.body))


def _digest(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode() if isinstance(part, str) else part
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.hexdigest()


def described(schema: dict[str, Any]) -> dict[str, Any]:
    """Add the header to the operations of an OpenAPI document that take it."""
    parameter = {
        "name": HEADER,
        "in": "header",
        "required": False,
        "description": DESCRIPTION,
        "schema": {"type": "string", "minLength": 1, "maxLength": 255},
        "example": "5f0c8f5e-2a52-4a54-9d0e-8f8a35c6bd0e",
    }
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            if is_covered(method.upper(), path):
                operation.setdefault("parameters", []).append(parameter)
    return schema
