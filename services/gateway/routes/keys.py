"""`/v1/keys`: API keys besides the first; `/v1/session`: the page's cookie."""

import secrets
import time
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from services.contracts.records import ApiKeyRecord
from services.gateway.authentication import COOKIE
from services.gateway.dependencies import Deps
from services.http import Problem, responses
from services.runtime.api_key import digest, new_key
from services.runtime.logs import get_logger

router = APIRouter(tags=["keys"])

SESSION_SECONDS = 30 * 24 * 3600

log = get_logger(__name__)


class NewKey(BaseModel):
    """What a new key is for."""

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
    """What the page sends once."""

    key: str = Field(min_length=1, max_length=1000, description="An API key.")


@router.post("/v1/keys", status_code=HTTPStatus.CREATED, summary="Make an API key")
async def make(deps: Deps, wanted: NewKey) -> MadeKey:
    """A key for one person or machine, which can be revoked alone. Any key may do everything,
    making keys included."""
    key = new_key()
    record = ApiKeyRecord(id=secrets.token_hex(4), name=wanted.name, created=time.time())
    await deps.store.api_keys.add(digest(key), record)
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
    if not await deps.store.api_keys.revoke(id):
        raise Problem(
            HTTPStatus.NOT_FOUND,
            f"there is no API key {id!r}; GET /v1/keys lists their ids. The first key is not "
            "revoked but replaced: write another into its file and restart the gateway",
        )
    log.info("API key revoked", id=id)


@router.post("/v1/session", status_code=HTTPStatus.NO_CONTENT, include_in_schema=False)
async def enter(deps: Deps, request: Request, response: Response, session: Session) -> None:
    """Store the key in a cookie that no script can read."""
    if not await deps.keyring.accepts(session.key.strip()):
        raise Problem(HTTPStatus.UNAUTHORIZED, "this gateway does not know this API key")
    response.set_cookie(
        COOKIE,
        session.key.strip(),
        max_age=SESSION_SECONDS,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )


@router.delete("/v1/session", status_code=HTTPStatus.NO_CONTENT, include_in_schema=False)
async def leave(response: Response) -> None:
    """Delete the cookie."""
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
