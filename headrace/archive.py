"""A tar archive that is unpacked while it arrives, so that it needs no second copy on the disk."""

import os
import shutil
import tarfile
import tempfile
import threading
from contextlib import suppress
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import BinaryIO

from headrace.errors import BadAnswer, HeadraceError


class Unpacking:
    """Unpacks an archive that holds one folder into the folder `target`, whole or not at all. A
    thread unpacks what `write` passes on. `folder` is the unpacked folder afterwards."""

    def __init__(self, target: Path) -> None:
        self.folder = self._target = target
        self._broken: Exception | None = None

    def __enter__(self) -> "Unpacking":
        self._target.mkdir(parents=True, exist_ok=True)
        self._part = Path(tempfile.mkdtemp(prefix=".part-", dir=self._target))
        reader, writer = os.pipe()
        self._writer = os.fdopen(writer, "wb")
        self._thread = threading.Thread(target=self._read, args=(os.fdopen(reader, "rb"),))
        self._thread.start()
        return self

    def write(self, piece: bytes) -> None:
        """Take the next bytes. Raises BrokenPipeError if the thread has failed: `__exit__` then
        says why."""
        self._writer.write(piece)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(BrokenPipeError):
            self._writer.close()
        self._thread.join()
        try:
            if error is None or isinstance(error, BrokenPipeError):
                self._finish()
        finally:
            shutil.rmtree(self._part, ignore_errors=True)

    def _finish(self) -> None:
        if self._broken is not None:
            raise self._broken
        names = [each.name for each in self._part.iterdir()]
        if len(names) != 1:
            raise BadAnswer(f"the archive has {len(names)} folders instead of one")
        self.folder = self._target / names[0]
        if self.folder.exists():
            raise HeadraceError(f"{self.folder} exists already")
        (self._part / names[0]).rename(self.folder)

    def _read(self, file: BinaryIO) -> None:
        with file:
            try:
                _unpack(file, self._part)
                # tar pads an archive to a multiple of its record.
                while file.read(1 << 16):
                    pass
            except tarfile.TarError as error:
                self._broken = BadAnswer(f"the archive cannot be unpacked: {error}")
            except Exception as error:
                self._broken = error


def _unpack(file: BinaryIO, folder: Path) -> None:
    """Write the files of an archive. A name that leads out of `folder`, and anything that is no
    plain file, is refused."""
    with tarfile.open(fileobj=file, mode="r|") as archive:
        for member in archive:
            parts = PurePosixPath(member.name).parts
            is_inside = all(Path(part).name == part != ".." for part in parts)
            if not (member.isreg() and len(parts) > 1 and is_inside):
                raise tarfile.TarError(f"it has {member.name!r}, which is no file in its folder")
            path = folder.joinpath(*parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            source = archive.extractfile(member)
            with path.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)  # type: ignore[arg-type]
