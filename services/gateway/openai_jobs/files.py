"""Objects of OpenAI's Files and Uploads API, and the limits of their requests. Pure."""

import hashlib
import secrets
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, Literal

from pydantic import BaseModel, Field

FINE_TUNE, RESULTS = "fine-tune", "fine-tune-results"
Purpose = Literal["fine-tune", "fine-tune-results"]
HOUR = 3600
UPLOAD_SECONDS = HOUR
"""Seconds after which an upload that is not completed expires."""
EXPIRY = range(HOUR, 30 * 24 * HOUR + 1)
MAX_PART = 64 << 20
"""Bytes of a part of an upload, as at OpenAI."""
MAX_NAME = 255


class FineTuningFile(BaseModel):
    """A file."""

    id: str = Field(description="Its id.")
    object: Literal["file"] = Field("file", description="`file`.")
    bytes: int = Field(description="Its size.")
    created_at: int = Field(description="Unix time.")
    expires_at: int | None = Field(None, description="Unix time. Left out: it stays.")
    filename: str = Field(description="As it was sent.")
    purpose: Purpose = Field(description="What it is for.")
    status: Literal["processed"] = Field("processed", description="Its rows were checked.")


class FileRecord(FineTuningFile):
    """A file, with what only the gateway knows."""

    project: str | None = None
    organization: str | None = None

    @property
    def shown(self) -> FineTuningFile:
        """Return the file as clients see it."""
        return FineTuningFile.model_validate(self.model_dump())


class FileList(BaseModel):
    """A page of files."""

    object: Literal["list"] = Field("list", description="`list`.")
    data: list[FineTuningFile] = Field(description="By time.")
    first_id: str = Field(description="The first file's id; empty without files.")
    last_id: str = Field(description="The last file's id: `after` of the next page.")
    has_more: bool = Field(description="Whether there is another page.")


class DeletedFile(BaseModel):
    """A file that is gone."""

    id: str = Field(description="Its id.")
    object: Literal["file"] = Field("file", description="`file`.")
    deleted: bool = Field(True, description="True.")


class FineTuningUpload(BaseModel):
    """A file that comes in parts."""

    id: str = Field(description="Its id.")
    object: Literal["upload"] = Field("upload", description="`upload`.")
    bytes: int = Field(description="The size of the whole file.")
    created_at: int = Field(description="Unix time.")
    expires_at: int = Field(description="Unix time after which it takes no parts.")
    filename: str = Field(description="The file's name.")
    purpose: Purpose = Field(description="What the file is for.")
    status: Literal["pending", "completed", "cancelled", "expired"] = Field(
        description="Whether it takes parts, and how it ended."
    )
    file: FineTuningFile | None = Field(None, description="The file, once it is completed.")


class UploadRecord(FineTuningUpload):
    """An upload, with what only the gateway knows."""

    file_seconds: int | None = None
    """Seconds after which the file expires."""
    project: str | None = None
    organization: str | None = None

    @property
    def shown(self) -> FineTuningUpload:
        """Return the upload as clients see it."""
        return FineTuningUpload.model_validate(self.model_dump())


class FineTuningPart(BaseModel):
    """A part of an upload."""

    id: str = Field(description="Its id, for `part_ids`.")
    object: Literal["upload.part"] = Field("upload.part", description="`upload.part`.")
    created_at: int = Field(description="Unix time.")
    upload_id: str = Field(description="The upload's id.")


class FieldError(ValueError):
    """A field of a request cannot be used."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


def checked_purpose(purpose: Any) -> Literal["fine-tune"]:
    """Return the purpose of a file that a client sends. Raises FieldError."""
    if purpose != FINE_TUNE:
        raise FieldError(
            "purpose", f"purpose {str(purpose)[:80]!r} is not supported: there is {FINE_TUNE!r}"
        )
    return "fine-tune"


def checked_name(name: Any) -> str:
    """Return a file's name without folders. Raises FieldError."""
    plain = PurePath(name).name if isinstance(name, str) else ""
    if not plain or len(plain) > MAX_NAME or not plain.isprintable():
        raise FieldError("filename", f"must be a file's name of 1 to {MAX_NAME} characters")
    return plain


def expiry_seconds(anchor: Any, seconds: Any) -> int | None:
    """Return the seconds of `expires_after`. Raises FieldError."""
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise FieldError("expires_after.anchor", "must be 'created_at'")
    text = str(seconds)
    if isinstance(seconds, bool) or not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise FieldError("expires_after.seconds", "must be a whole number")
    if int(text) not in EXPIRY:
        raise FieldError(
            "expires_after.seconds", f"must be from {EXPIRY[0]} to {EXPIRY[-1]}, not {text}"
        )
    return int(text)


def new_id(prefix: str, caller: str, key: str | None) -> str:
    """Return an id. A request that is sent again with its Idempotency-Key gets the same id."""
    if key is None:
        return prefix + secrets.token_hex(12)
    digest = hashlib.sha256(f"{prefix}\n{caller}\n{key}".encode())
    return prefix + digest.hexdigest()[:24]


def page_of(
    files: Sequence[FineTuningFile], after: str | None, limit: int, is_ascending: bool
) -> FileList:
    """Return the page of files behind `after`. Raises FieldError if there is no such file."""
    ordered = sorted(files, key=lambda file: (file.created_at, file.id), reverse=not is_ascending)
    if after is not None:
        places = [place for place, file in enumerate(ordered) if file.id == after]
        if not places:
            raise FieldError("after", f"there is no file {after[:80]!r}")
        ordered = ordered[places[0] + 1 :]
    page = ordered[:limit]
    return FileList(
        data=page,
        first_id=page[0].id if page else "",
        last_id=page[-1].id if page else "",
        has_more=len(ordered) > limit,
    )
