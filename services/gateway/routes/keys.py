"""`/v1/keys`: API keys besides the first; `/v1/session`: the page's cookie."""

import secrets
import time
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from services.contracts.records import ApiKeyRecord
from services.gateway.authentication import (
    LOGIN_SECONDS,
    SESSION_SECONDS,
    cookie_name,
    session_token,
)
from services.gateway.dependencies import Deps
from services.http import Problem, host_of, responses
from services.recovery.copies import keep_copy
from services.recovery.key_copies import KeyCopy, keep_key, mark_revoked
from services.runtime.api_key import bearer, digest, new_key
from services.runtime.logs import get_logger

router = APIRouter(tags=["keys"])

log = get_logger(__name__)


class NewKey(BaseModel):
    """The name of a new key."""

    model_config = ConfigDict(json_schema_extra={"example": {"name": "alice"}})

    name: str = Field(
        min_length=1, max_length=100, description="For people: who or what will use it."
    )


class MadeKey(ApiKeyRecord):
    """A new key. Only this answer ever shows it."""

    key: str = Field(description="To be sent as `Authorization: Bearer KEY`.")


class KeyList(BaseModel):
    """Keys that are accepted besides the first, oldest first."""

    keys: list[ApiKeyRecord] = Field(description="Their names; never the keys.")


class Session(BaseModel):
    """The page's request for a session."""

    key: str = Field(min_length=1, max_length=1000, description="An API key, or a login token.")


class Login(BaseModel):
    """The key that a browser logs in with."""

    token: str = Field(description="To be opened as `/#login=TOKEN`.")
    seconds: int = Field(description="How long it works, once.")


@router.post("/v1/keys", status_code=HTTPStatus.CREATED, summary="Make an API key")
async def make(deps: Deps, new: NewKey) -> MadeKey:
    """A key for one person or machine, which can be revoked alone. Any key may do everything,
    making keys included."""
    key = new_key()
    record = ApiKeyRecord(id=secrets.token_hex(4), name=new.name, created=time.time())
    await deps.store.api_keys.add(digest(key), record)
    await keep_copy(keep_key, deps.volume.root, KeyCopy(digest=digest(key), record=record))
    log.info("API key made", id=record.id, name=record.name)
    return MadeKey(**record.model_dump(), key=key)


@router.get("/v1/keys", summary="List API keys")
async def list_all(deps: Deps) -> KeyList:
    """Their names and ids, without the first key, which is in the data folder."""
    return KeyList(keys=await deps.store.api_keys.list())


@router.delete(
    "/v1/keys/{id}",
    status_code=HTTPStatus.NO_CONTENT,
    summary="Revoke an API key",
    responses=responses({404: "There is no such key"}),
)
async def revoke(deps: Deps, id: Annotated[str, Path(description="Its id.")]) -> None:
    """Requests with it are refused from now on."""
    accepted = await deps.store.api_keys.digests()
    digests = [digest for digest, record in accepted.items() if record and record.id == id]
    if not digests:
        raise Problem(
            HTTPStatus.NOT_FOUND,
            f"there is no API key {id!r}; GET /v1/keys lists their ids. The first key is not "
            "revoked but replaced: write another into its file and restart the gateway",
        )
    await keep_copy(mark_revoked, deps.volume.root, digests)
    await deps.store.api_keys.remove(digests)
    log.info("API key revoked", id=id)


@router.post("/v1/session", status_code=HTTPStatus.NO_CONTENT, include_in_schema=False)
async def enter(deps: Deps, request: Request, response: Response, session: Session) -> None:
    """Begin a session for a key, or for the token of a login link, and set its cookie, which no
    script can read."""
    token = await deps.keyring.begin_session(session.key.strip())
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
        max_age=SESSION_SECONDS,
        httponly=True,
        samesite="strict",
        secure=secure,
    )
    log.info("session begun")


@router.delete("/v1/session", status_code=HTTPStatus.NO_CONTENT, include_in_schema=False)
async def leave(deps: Deps, request: Request, response: Response) -> None:
    """End the session and delete its cookie."""
    _, port = host_of(request.headers)
    if (token := session_token(request.headers, port, request.url.scheme)) is not None:
        await deps.keyring.end_session(token)
        log.info("session ended")
    for secure in (False, True):
        response.delete_cookie(
            cookie_name(port, secure), httponly=True, samesite="strict", secure=secure
        )


@router.post("/v1/login", summary="Make a login link")
async def login(deps: Deps, request: Request) -> Login:
    """A token that begins one session of the page, within an hour: open `/#login=TOKEN` in a
    browser. The request must carry the key itself."""
    key = bearer(request.headers.get("authorization", ""))
    if key is None:
        raise Problem(
            HTTPStatus.FORBIDDEN, "a login link is made with a key, not with the page's session"
        )
    return Login(token=await deps.keyring.login_token(key), seconds=LOGIN_SECONDS)
