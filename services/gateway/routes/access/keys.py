"""`/v1/keys`: API keys besides the first."""

import secrets
import time
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field, model_validator

from services.contracts.records import ApiKeyRecord, Project, Role, Surface
from services.gateway.dependencies import Deps
from services.gateway.paging import Cursor, Limit, Next, page_of
from services.http import Problem, responses
from services.recovery.key_copies import KeyCopy, keep_key, mark_revoked
from services.recovery.record_copies import keep_copy
from services.runtime.api_key import digest, new_key
from services.runtime.logs import get_logger

router = APIRouter(tags=["keys"])

log = get_logger(__name__)


class NewKey(BaseModel):
    """The name of a new key, and what it may do."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"example": {"name": "alice", "role": "submit"}}
    )

    name: str = Field(
        min_length=1, max_length=100, description="For people: who or what will use it."
    )
    role: Role = Field(
        "admin",
        description="`read`: sees everything, changes nothing. `submit`: also uploads, submits, "
        "changes and deletes. `admin`: also manages keys, and serves workers.",
    )
    surface: Surface = Field(
        "all",
        description="`openai`: it reaches only `/openai/v1/` and the calls that ask a model.",
    )
    project: Project | None = Field(
        None,
        description="It sees this project's files, jobs and fine-tuned models alone. What is made "
        "with it belongs to the project. Needs `surface: openai`: the rest of the API has no "
        "projects.",
    )

    @model_validator(mode="after")
    def _fits(self) -> "NewKey":
        if self.project is not None and self.surface != "openai":
            raise ValueError(
                f"project {self.project!r} needs surface 'openai': the rest of the API has no "
                "projects"
            )
        return self


class MadeKey(ApiKeyRecord):
    """A new key. Only this answer ever shows it."""

    key: str = Field(description="To be sent as `Authorization: Bearer KEY`.")


class KeyList(BaseModel):
    """A page of the keys that are accepted besides the first, oldest first."""

    keys: list[ApiKeyRecord] = Field(description="Their names; never the keys.")
    next: Next


@router.post(
    "/v1/keys",
    status_code=HTTPStatus.CREATED,
    operation_id="keys_create",
    summary="Make an API key",
)
async def make(deps: Deps, new: NewKey) -> MadeKey:
    """A key for one person or machine, which can be revoked alone. Its role, surface and project
    limit what it may do. A request beyond them is refused (403), and the refusal names the role or
    the surface."""
    key = new_key()
    record = ApiKeyRecord(id=secrets.token_hex(4), created=time.time(), **new.model_dump())
    await deps.store.api_keys.add(digest(key), record)
    await keep_copy(keep_key, deps.volume.root, KeyCopy(digest=digest(key), record=record))
    log.info("API key made", id=record.id, name=record.name, role=record.role)
    return MadeKey(**record.model_dump(), key=key)


@router.get("/v1/keys", operation_id="keys_list", summary="List API keys")
async def list_all(deps: Deps, limit: Limit = 200, cursor: Cursor = None) -> KeyList:
    """Their names and ids, without the first key, which is in the data folder."""
    records = await deps.store.api_keys.list()
    page, following = page_of(records, lambda key: (key.created, key.id), limit, cursor)
    return KeyList(keys=page, next=following)


@router.delete(
    "/v1/keys/{id}",
    status_code=HTTPStatus.NO_CONTENT,
    operation_id="keys_delete",
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
