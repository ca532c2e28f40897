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
    """A reference that makes no sense, or a file that is not the one it names."""


class PayloadFile(msgspec.Struct, frozen=True):
    """A payload outside of Redis."""

    name: str
    """Relative to the data volume, or in the store of objects."""
    bytes: int

    @property
    def xxh3(self) -> str:
        """The checksum, which is part of the name."""
        found = _NAME.fullmatch(self.name)
        return found[4] if found else ""


class Owner(NamedTuple):
    """Whose payload a file is. Two workers may write one for the same attempt, where the first was
    stopped meanwhile: the names have checksums, so neither replaces the other's."""

    run: str
    task: int
    attempt: str


def payload_name(owner: Owner, xxh3: str) -> str:
    """`runs/RUN/payloads/TASK-ATTEMPT-XXH3.group`."""
    return f"runs/{owner.run}/payloads/{owner.task}-{owner.attempt}-{xxh3}.group"


def owner_of(name: str) -> Owner | None:
    """Whose file `name` is; None for a name that no payload has."""
    found = _NAME.fullmatch(name)
    return Owner(found[1], int(found[2]), found[3]) if found else None


def reference(file: PayloadFile) -> bytes:
    """What Redis keeps in place of the payload."""
    return MARK + msgspec.msgpack.encode(file)


def bytes_outside(kept: bytes) -> int:
    """Bytes of the file that `kept` names; 0 where that is a payload, or damaged."""
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
