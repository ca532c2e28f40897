"""Where the payload of a group lies that is too large for Redis: the reference that Redis keeps in
its place, and the names of such files.

A payload begins with the length of its header (`trajectory`), a reference with a length of 0, which
no payload has.
"""

import re
from typing import NamedTuple

import msgspec

MARK = bytes(4)
REFERENCE = 256
"""Bytes that no reference exceeds."""
_NAME = re.compile(
    r"runs/([A-Za-z0-9][\w-]*)/payloads/(\d{1,15})"
    r"-((?:l[0-9a-f]{16}\.)?[0-9a-f]{16})-([0-9a-f]{16})\.group",
    re.ASCII,
)


class Damaged(ValueError):
    """An invalid reference, or a file that differs from its reference."""


class PayloadFile(msgspec.Struct, frozen=True):
    """A payload outside of Redis."""

    name: str
    """Relative to the data volume, or in the store of objects."""
    bytes: int

    @property
    def xxh3(self) -> str:
        """The checksum, which is part of the name."""
        match = _NAME.fullmatch(self.name)
        return match[4] if match else ""


class Owner(NamedTuple):
    """The attempt that a payload file belongs to. Two workers may write a file for the same
    attempt, if the first was stopped meanwhile. The names have checksums, so neither file replaces
    the other."""

    run: str
    task: int
    attempt: str


def payload_name(owner: Owner, xxh3: str) -> str:
    """`runs/RUN/payloads/TASK-ATTEMPT-XXH3.group`."""
    return f"runs/{owner.run}/payloads/{owner.task}-{owner.attempt}-{xxh3}.group"


def owner_of(name: str) -> Owner | None:
    """Return the owner of the file `name`, or None if the name is not a payload's."""
    match = _NAME.fullmatch(name)
    return Owner(match[1], int(match[2]), match[3]) if match else None


def reference(file: PayloadFile) -> bytes:
    """Return the reference that Redis keeps instead of the payload."""
    return MARK + msgspec.msgpack.encode(file)


def bytes_outside(kept: bytes) -> int:
    """Return the bytes of the file that `kept` names, or 0 if `kept` is a payload or damaged."""
    try:
        file = parse_reference(kept)
    except Damaged:
        return 0
    return file.bytes if file else 0


def parse_reference(kept: bytes) -> PayloadFile | None:
    """The file that `kept` names; None where `kept` is a payload. Raises Damaged."""
    if kept[: len(MARK)] != MARK:
        return None
    try:
        file = msgspec.msgpack.decode(kept[len(MARK) :], type=PayloadFile)
    except msgspec.MsgspecError as error:
        raise Damaged(f"the reference to its payload is damaged: {error}") from error
    if owner_of(file.name) is None:
        raise Damaged(f"its payload has a name that no payload has: {file.name!r}")
    return file
