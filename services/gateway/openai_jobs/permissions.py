"""Permissions of OpenAI's API: which projects may use the model of a run, besides its own.

`openai/permissions/RUN.json` on the data volume is a run's list. A key without a project sees every
model, with or without a permission.
"""

import secrets
import time
from pathlib import Path
from typing import Literal

import anyio.to_thread
from pydantic import BaseModel, Field, TypeAdapter

from services.volume import fsync, written_beside

MOST_PERMISSIONS = 1000


class Permission(BaseModel):
    """A project's permission for a model."""

    id: str = Field(description="Its id.")
    object: Literal["checkpoint.permission"] = Field(
        "checkpoint.permission", description="`checkpoint.permission`."
    )
    created_at: int = Field(description="Unix time.")
    project_id: str = Field(description="The project.")


class PermissionPage(BaseModel):
    """A page of permissions."""

    object: Literal["list"] = Field("list", description="`list`.")
    data: list[Permission] = Field(description="By time.")
    first_id: str | None = Field(description="The first permission's id.")
    last_id: str | None = Field(description="The last permission's id: `after` of the next page.")
    has_more: bool = Field(description="Whether there is another page.")


class DeletedPermission(BaseModel):
    """A permission that is gone."""

    id: str = Field(description="Its id.")
    object: Literal["checkpoint.permission"] = Field(
        "checkpoint.permission", description="`checkpoint.permission`."
    )
    deleted: bool = Field(True, description="`true`.")


_LIST = TypeAdapter(list[Permission])


def kept_permissions(root: Path, run: str) -> list[Permission]:
    """Return a run's permissions, the oldest first. Raises OSError, and ValueError for a damaged
    list."""
    try:
        return _LIST.validate_json(_file(root, run).read_bytes())
    except FileNotFoundError:
        return []


def add_permissions(root: Path, run: str, projects: list[str]) -> list[Permission]:
    """Permit projects to use a run's model, and return their permissions. A permission that is
    there stays. Raises OSError, ValueError."""
    kept = kept_permissions(root, run)
    there = {permission.project_id for permission in kept}
    now = int(time.time())
    added = [
        Permission(id=f"cp_{secrets.token_hex(12)}", created_at=now, project_id=project)
        for project in dict.fromkeys(projects)
        if project not in there
    ]
    if len(kept) + len(added) > MOST_PERMISSIONS:
        raise ValueError(f"a model has at most {MOST_PERMISSIONS:,} permissions: delete some")
    if added:
        _write(root, run, [*kept, *added])
    return [permission for permission in [*kept, *added] if permission.project_id in projects]


def delete_permission(root: Path, run: str, id: str) -> bool:
    """Delete a permission. Return whether it was there. Raises OSError, ValueError."""
    kept = kept_permissions(root, run)
    left = [permission for permission in kept if permission.id != id]
    if len(left) < len(kept):
        _write(root, run, left)
    return len(left) < len(kept)


async def is_permitted(root: Path, run: str, project: str | None) -> bool:
    """Whether a project may use the model of another project's run. Raises OSError, ValueError."""
    if project is None:
        return False
    kept = await anyio.to_thread.run_sync(kept_permissions, root, run)
    return any(permission.project_id == project for permission in kept)


def _file(root: Path, run: str) -> Path:
    return root / "openai" / "permissions" / f"{run}.json"


def _write(root: Path, run: str, permissions: list[Permission]) -> None:
    file = _file(root, run)
    if not permissions:
        file.unlink(missing_ok=True)
        fsync(file.parent)
        return
    with written_beside(file) as beside:
        beside.write_bytes(_LIST.dump_json(permissions))
