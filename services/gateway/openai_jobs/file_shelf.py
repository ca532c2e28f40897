"""Keeps the files and uploads of OpenAI's API on the data volume, below `openai/`.

`files/ID/` has `content` and `record.json`, and comes into being by one rename, so a file is whole
or not there. `uploads/ID/` has `record.json` and `parts/ID`. An upload's file has the upload's
digits in its id: whoever completes an upload again, after a kill, makes the same file.
"""

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, TypeVar

from pydantic import ValidationError

from services.gateway.openai_jobs.files import (
    RESULTS,
    UPLOAD_SECONDS,
    FieldError,
    FileRecord,
    FineTuningPart,
    UploadRecord,
)
from services.gateway.openai_jobs.training_rows import BadRowError, check_rows
from services.payloads.places import require_space
from services.runtime.logs import get_logger
from services.volume import fsync, written_beside

log = get_logger(__name__)

FILE, UPLOAD, PART = (
    re.compile(rf"{prefix}[0-9a-f]{{24}}") for prefix in ("file-", "upload_", "part_")
)
CONTENT, RECORD, PARTS = "content", "record.json", "parts"
PIECE = 1 << 20
RECORD_SECONDS = 86_400
"""How long the record of an upload that has expired stays."""
T = TypeVar("T", FileRecord, UploadRecord)


class FileShelf:
    """Files and uploads of one installation. Its methods block: call them in a thread."""

    def __init__(self, root: Path, now: Callable[[], float] = time.time) -> None:
        """`root`: the data volume."""
        self._root = root
        self._files, self._uploads = root / "openai" / "files", root / "openai" / "uploads"
        self._now = now

    def add(
        self,
        id: str,
        name: str,
        purpose: str,
        pieces: Iterable[bytes],
        seconds: int | None = None,
        project: str | None = None,
        organization: str | None = None,
    ) -> FileRecord:
        """Keep a file, after its rows were checked. Return the file of that id if it is there.
        Raises FieldError, OSError."""

        def check(content: BinaryIO) -> None:
            try:
                check_rows(content)
            except BadRowError as error:
                raise FieldError("file", f"{name}: {error}") from None

        about = {"purpose": purpose, "project": project, "organization": organization}
        return self._keep(id, name, pieces, check, seconds, about)

    def add_results(
        self, id: str, name: str, content: bytes, project: str | None, organization: str | None
    ) -> FileRecord:
        """Keep the results of a job. Return the file of that id if it is there. Raises OSError."""
        about = {"purpose": RESULTS, "project": project, "organization": organization}
        return self._keep(id, name, [content], lambda _: None, None, about)

    def _keep(
        self,
        id: str,
        name: str,
        pieces: Iterable[bytes],
        check: Callable[[BinaryIO], None],
        seconds: int | None,
        about: dict[str, str | None],
    ) -> FileRecord:
        if (known := self.file(id)) is not None:
            return known
        self._files.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{id}.", dir=self._files))
        try:
            with (beside / CONTENT).open("w+b") as content:
                for piece in pieces:
                    content.write(piece)
                size = content.tell()
                content.seek(0)
                check(content)
            created = int(self._now())
            record = FileRecord.model_validate(
                {
                    "id": id,
                    "bytes": size,
                    "created_at": created,
                    "expires_at": None if seconds is None else created + seconds,
                    "filename": name,
                    **about,
                }
            )
            (beside / RECORD).write_text(record.model_dump_json())
            for path in (beside / CONTENT, beside / RECORD, beside):
                fsync(path)
            with contextlib.suppress(OSError):
                # Another request with the same id may have been faster.
                beside.rename(self._files / id)
            fsync(self._files)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
        if (kept := self.file(id)) is None:
            raise OSError(f"{self._files / id} cannot be made")
        return kept

    def file(self, id: str) -> FileRecord | None:
        """Return a file. Return None if there is none, or if it has expired."""
        if not FILE.fullmatch(id):
            return None
        record = _read(self._files / id / RECORD, FileRecord)
        if record is None or record.expires_at is None or record.expires_at > self._now():
            return record
        self.delete(id)
        return None

    def files(self) -> list[FileRecord]:
        """Return all files, in no order."""
        records = (self.file(id) for id in _names(self._files))
        return [record for record in records if record is not None]

    def open(self, id: str) -> BufferedReader | None:
        """Open a file's content. Return None if there is no such file."""
        try:
            return None if self.file(id) is None else (self._files / id / CONTENT).open("rb")
        except FileNotFoundError:
            return None

    def delete(self, id: str) -> bool:
        """Delete a file. Return whether it was there."""
        gone = Path(tempfile.mkdtemp(prefix=".gone.", dir=self._root / "openai"))
        try:
            (self._files / id).rename(gone / id)
        except FileNotFoundError:
            return False
        else:
            fsync(self._files)
            return True
        finally:
            shutil.rmtree(gone, ignore_errors=True)

    def begin(self, record: UploadRecord) -> UploadRecord:
        """Begin an upload. Return the upload of that id if it is there."""
        if (known := self.upload(record.id)) is not None:
            return known
        require_space(self._root, record.bytes)
        (self._uploads / record.id / PARTS).mkdir(parents=True, exist_ok=True)
        self._write(record)
        return record

    def upload(self, id: str) -> UploadRecord | None:
        """Return an upload. Return None if there is none."""
        if not UPLOAD.fullmatch(id):
            return None
        record = _read(self._uploads / id / RECORD, UploadRecord)
        if record is not None and record.status == "pending" and record.expires_at <= self._now():
            return record.model_copy(update={"status": "expired"})
        return record

    def add_part(self, upload: UploadRecord, id: str, pieces: Iterable[bytes]) -> FineTuningPart:
        """Keep a part of an upload. Raises FieldError if the parts are larger than the file."""
        _require_pending(upload)
        folder = self._uploads / upload.id / PARTS
        there = sum(_size(path) for path in folder.iterdir() if path.name != id)
        # Parts that were sent twice may lie beside each other.
        most = 2 * upload.bytes
        with written_beside(folder / id) as beside, beside.open("wb") as part:
            for piece in pieces:
                there += len(piece)
                if there > most:
                    raise FieldError(
                        "data", f"the parts have more than {most} bytes, twice those of the file"
                    )
                part.write(piece)
        return FineTuningPart(id=id, created_at=int(self._now()), upload_id=upload.id)

    def complete(self, upload: UploadRecord, parts: list[str], md5: str | None) -> UploadRecord:
        """Make the file of an upload. An upload that is completed stays as it is. Raises
        FieldError, OSError."""
        if upload.status == "completed":
            return upload
        _require_pending(upload)
        paths = self._paths_of(upload, parts)
        size = sum(path.stat().st_size for path in paths)
        if size != upload.bytes:
            raise FieldError(
                "part_ids", f"the parts have {size} bytes; the upload was begun with {upload.bytes}"
            )
        if md5 is not None and _md5_of(paths) != md5.lower():
            raise FieldError("md5", "the parts have another checksum: send them again")
        id = f"file-{upload.id.removeprefix('upload_')}"
        file = self.add(
            id,
            upload.filename,
            upload.purpose,
            _read_all(paths),
            upload.file_seconds,
            upload.project,
            upload.organization,
        )
        done = upload.model_copy(update={"status": "completed", "file": file.shown})
        self._write(done)
        self._forget_parts(upload.id)
        return done

    def cancel(self, upload: UploadRecord) -> UploadRecord:
        """End an upload without a file. Raises FieldError if it has one."""
        if upload.status == "cancelled":
            return upload
        _require_pending(upload)
        done = upload.model_copy(update={"status": "cancelled"})
        self._write(done)
        self._forget_parts(upload.id)
        return done

    def forget_expired(self) -> None:
        """Delete expired files, the parts of expired uploads, and the records of all uploads a day
        after they expired or would have. Until then a request that is sent again finds its
        upload."""
        self.files()
        for id in _names(self._uploads):
            upload = self.upload(id)
            if upload is None or upload.expires_at + RECORD_SECONDS > self._now():
                if upload is not None and upload.status == "expired":
                    self._forget_parts(id)
                continue
            shutil.rmtree(self._uploads / id, ignore_errors=True)
            log.info("an upload's record deleted", upload=id, status=upload.status)

    def _paths_of(self, upload: UploadRecord, parts: list[str]) -> list[Path]:
        folder = self._uploads / upload.id / PARTS
        known = {path.name for path in folder.iterdir()}
        for number, id in enumerate(parts):
            if not PART.fullmatch(id) or id not in known:
                raise FieldError("part_ids", f"the upload has no part {id[:80]!r}")
            if id in parts[:number]:
                raise FieldError("part_ids", f"part {id} is named twice")
        return [folder / id for id in parts]

    def _forget_parts(self, upload: str) -> None:
        for path in (self._uploads / upload / PARTS).glob("*"):
            path.unlink(missing_ok=True)

    def _write(self, record: UploadRecord) -> None:
        with written_beside(self._uploads / record.id / RECORD) as beside:
            beside.write_text(record.model_dump_json())


def new_upload(
    id: str, name: str, purpose: str, size: int, seconds: int | None, now: float
) -> UploadRecord:
    """Return an upload that waits for its parts."""
    return UploadRecord.model_validate(
        {
            "id": id,
            "bytes": size,
            "created_at": int(now),
            "expires_at": int(now) + UPLOAD_SECONDS,
            "filename": name,
            "purpose": purpose,
            "status": "pending",
            "file_seconds": seconds,
        }
    )


def _require_pending(upload: UploadRecord) -> None:
    if upload.status != "pending":
        raise FieldError("upload_id", f"upload {upload.id} is {upload.status}: begin another")


def _size(part: Path) -> int:
    """Return a part's size, or 0 for one whose request ends now: its file is renamed or deleted."""
    try:
        return part.stat().st_size
    except FileNotFoundError:
        return 0


def _names(folder: Path) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if not name.startswith(".")]
    except FileNotFoundError:
        return []


def _read(path: Path, kind: type[T]) -> T | None:
    """Read a record. A damaged record is logged, and counts as missing."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValidationError as error:
        log.warning("a record is damaged", file=str(path), problem=str(error)[:300])
        return None


def _read_all(paths: Iterable[Path]) -> Iterator[bytes]:
    for path in paths:
        with path.open("rb") as file:
            while piece := file.read(PIECE):
                yield piece


def _md5_of(paths: Iterable[Path]) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    for piece in _read_all(paths):
        digest.update(piece)
    return digest.hexdigest()
