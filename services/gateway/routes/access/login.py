"""`/v1/login`: links that log a browser in; `/v1/session`: the page's cookie."""

import secrets
from http import HTTPStatus

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from services.contracts.records import Role
from services.gateway.authentication import PAGE_SESSION_SECONDS, cookie_name, page_session_token
from services.gateway.dependencies import Deps
from services.http import Problem, host_of
from services.runtime.api_key import digest, shown_key
from services.runtime.logs import get_logger

router = APIRouter(tags=["keys"])

log = get_logger(__name__)

LOGIN_SECONDS = 3600
"""Seconds for which a login token works, once."""


class PageSessionRequest(BaseModel):
    """The page asks to begin its session."""

    key: str = Field(min_length=1, max_length=1000, description="An API key, or a login token.")


class PageSession(BaseModel):
    """The session of the page."""

    role: Role | None = Field(description="The role of its key. Null: there is no session.")


class Login(BaseModel):
    """The key that a browser logs in with."""

    token: str = Field(description="To be opened as `/#login=TOKEN`.")
    seconds: int = Field(description="How long it works, once.")


@router.post("/v1/session", status_code=HTTPStatus.NO_CONTENT, include_in_schema=False)
async def enter(
    deps: Deps, request: Request, response: Response, asked: PageSessionRequest
) -> None:
    """Begin a session of the page for a key, or for the token of a login link. Set its cookie,
    which no script can read."""
    token = await deps.keyring.begin_page_session(asked.key.strip())
    if token is None:
        raise Problem(
            HTTPStatus.UNAUTHORIZED,
            "this gateway does not know this API key; a login link works once, for an hour",
        )
    _, port = host_of(request.headers)
    # The browser may use TLS that a proxy ends: the origin shows it.
    origin = request.headers.get("origin", "")
    secure = request.url.scheme == "https" or origin.startswith("https://")
    response.set_cookie(
        cookie_name(port, secure),
        token,
        max_age=PAGE_SESSION_SECONDS,
        httponly=True,
        samesite="strict",
        secure=secure,
    )
    log.info("page session begun")


@router.get("/v1/session", include_in_schema=False)
async def session(deps: Deps, request: Request) -> PageSession:
    """The role of the page's session: the page offers only what the role allows."""
    _, port = host_of(request.headers)
    token = page_session_token(request.headers, port, request.url.scheme)
    caller = await deps.keyring.page_session_caller(token) if token else None
    return PageSession(role=caller.role if caller else None)


@router.delete("/v1/session", status_code=HTTPStatus.NO_CONTENT, include_in_schema=False)
async def leave(deps: Deps, request: Request, response: Response) -> None:
    """End the session and delete its cookie."""
    _, port = host_of(request.headers)
    if (token := page_session_token(request.headers, port, request.url.scheme)) is not None:
        await deps.keyring.end_page_session(token)
        log.info("page session ended")
    for secure in (False, True):
        response.delete_cookie(
            cookie_name(port, secure), httponly=True, samesite="strict", secure=secure
        )


@router.post("/v1/login", operation_id="logins_create", summary="Make a login link")
async def login(deps: Deps, request: Request) -> Login:
    """A token that begins one session of the page, within an hour: open `/#login=TOKEN` in a
    browser. The request must carry the key itself."""
    key = shown_key(request.headers)
    if key is None:
        raise Problem(
            HTTPStatus.FORBIDDEN, "a login link is made with a key, not with the page's session"
        )
    token = secrets.token_urlsafe(32)
    await deps.store.page_sessions.begin("login", digest(token), digest(key), LOGIN_SECONDS)
    return Login(token=token, seconds=LOGIN_SECONDS)
