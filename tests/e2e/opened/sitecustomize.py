"""Records what each Python process opens for reading in the folders that all users share, the
folders that it makes there, and the folders of its own user that it deletes. Python imports
this module at its start."""

import contextlib
import os
import sys
from typing import Any

LOG = os.environ.get("OPENED_FILES_LOG")
SHARED = ("/tmp", "/var/tmp", "/dev/shm")


def record(kind: str, what: str) -> None:
    os.write(DESCRIPTOR, f"{kind}\t{what}\n".encode(errors="replace"))


def opened(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("tempfile.mkdtemp", "tempfile.mkstemp"):
        record("made", os.fsdecode(arguments[0]))
    elif event == "shutil.rmtree":
        folder = os.path.abspath(os.fsdecode(arguments[0]))
        # To delete a folder lists it, and reads nothing that is in its files.
        with contextlib.suppress(FileNotFoundError):
            if os.lstat(folder).st_uid == os.getuid():
                record("deleted", folder)
    elif event in ("open", "ctypes.dlopen", "os.listdir", "os.scandir", "os.mkdir"):
        path = arguments[0]
        flags = arguments[2] if event == "open" and len(arguments) > 2 else os.O_RDONLY
        if not isinstance(path, str | bytes | os.PathLike) or not isinstance(flags, int):
            return
        # O_EXCL makes a new file or fails.
        if flags & os.O_EXCL or flags & os.O_ACCMODE == os.O_WRONLY:
            return
        text = os.path.abspath(os.fsdecode(path))
        # To list a shared folder reads nothing that is in its files.
        if text.startswith(SHARED) and text not in SHARED:
            record("read", text)


if LOG:
    DESCRIPTOR = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with open("/proc/self/cmdline", "rb") as file:
        record("process", " ".join(file.read().decode(errors="replace").split("\0")))
    sys.addaudithook(opened)
