"""Read a JSON array element by element: the file may be larger than memory."""

import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from services.contracts.strict_json import NotJSON, decode
from services.datasets.row_checks import MAX_ROW_BYTES, DatasetError, too_large

CHUNK = 1 << 16
BOM = b"\xef\xbb\xbf"
STRUCTURE = re.compile(rb'[\[\]{},"]')
IN_STRING = re.compile(rb'\\.?|"', re.DOTALL)


def is_array(file: BinaryIO) -> bool:
    """Whether the first character of `file` opens an array."""
    file.seek(0)
    is_array = file.read(CHUNK).removeprefix(BOM).lstrip()[:1] == b"["
    file.seek(0)
    return is_array


def array_elements(file: BinaryIO) -> Iterator[tuple[str, Any, bytes]]:
    """Yield the elements with their place (`element 3`, from 1) and their text. Raises
    DatasetError, which names the place."""
    for number, text in enumerate(_texts(file), 1):
        try:
            yield f"element {number}", decode(text), text
        except NotJSON as error:
            start = text[:60].decode(errors="replace")
            raise DatasetError(
                f"element {number} is not JSON: {error}. It begins: {start}"
            ) from None


def _texts(file: BinaryIO) -> Iterator[bytes]:
    """Yield the text of each element, unchecked: invalid JSON inside an element stays there."""
    text, number, depth, quoted = bytearray(), 1, 0, False
    chunk = file.read(CHUNK).removeprefix(BOM)
    at = chunk.index(b"[") + 1
    while chunk:
        match = (IN_STRING if quoted else STRUCTURE).search(chunk, at)
        begin, at = at, match.end() if match else len(chunk)
        sign = match[0] if match else b""
        ends = not quoted and not depth and sign in (b",", b"]")
        text += chunk[begin : at - 1 if ends else at]
        if len(text) > MAX_ROW_BYTES:
            raise DatasetError(too_large(f"element {number}"))
        if ends:
            # `[]` has no element; a comma has one before it and one behind it.
            if sign == b"," or number > 1 or text.strip():
                yield bytes(text.strip())
            if sign == b"]":
                _check_end(file, chunk[at:])
                return
            text, number = bytearray(), number + 1
        elif sign == b'"':
            quoted = not quoted
        elif not quoted:
            depth += (sign in (b"[", b"{")) - (sign in (b"]", b"}"))
        if sign == b"\\":
            # The escaped character is in the next chunk.
            chunk, at = sign + file.read(CHUNK), 0
            del text[-1:]
            if len(chunk) == 1:
                break
        elif at == len(chunk):
            chunk, at = file.read(CHUNK), 0
    raise DatasetError(f"its JSON array has no end: the file stops within element {number}")


def _check_end(file: BinaryIO, rest: bytes) -> None:
    while True:
        if rest.strip():
            raise DatasetError("something follows its JSON array: upload one array, or JSON lines")
        if not (rest := file.read(CHUNK)):
            return
