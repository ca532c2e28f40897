"""Read the lines of a text file in UTF-8, of at most MAX_ROW_BYTES each. Every error names the
line."""

import codecs
from collections.abc import Iterator
from typing import BinaryIO

from services.datasets.row_checks import MAX_ROW_BYTES, DatasetError, too_large

OTHERS = ("cp1252", "gb18030", "shift_jis", "cp1251")
"""Encodings that a file in no UTF-8 often has; an error shows what its line says in each."""
AROUND = 12
"""Bytes shown before and after the first byte that is not UTF-8."""


def check_encoding(filename: str, head: bytes) -> None:
    """Raise DatasetError for a file that begins with the mark of UTF-16 or UTF-32."""
    if head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        name = "UTF-32" if head[2:4] == b"\0\0" else "UTF-16"
        raise DatasetError(
            f"{filename} is {name}: save it as UTF-8, e.g. with iconv -f {name.lower()} -t utf-8"
        )


def text_lines(file: BinaryIO) -> Iterator[tuple[int, str]]:
    """Yield the lines with their numbers (from 1), line ends included. Raises DatasetError."""
    for number, raw in enumerate(iter(lambda: file.readline(MAX_ROW_BYTES + 1), b""), 1):
        if len(raw) > MAX_ROW_BYTES:
            raise DatasetError(too_large(f"line {number}"))
        line = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
        if b"\0" in line:
            raise DatasetError(
                f"line {number} has a byte of zero, which no text has (byte {line.index(0) + 1} "
                "of the line): the file is damaged, or in another encoding like UTF-16; save it as "
                "UTF-8"
            )
        try:
            yield number, line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DatasetError(_not_utf8(number, line, error.start)) from None


def _not_utf8(number: int, line: bytes, at: int) -> str:
    around = line[max(0, at - AROUND) : at + AROUND].strip()
    readings = []
    for encoding in OTHERS:
        # A character of two bytes may be cut at the end of the excerpt.
        text = codecs.getincrementaldecoder(encoding)("replace").decode(around)
        if "\ufffd" not in text:
            readings.append(f"{encoding}: {text!r}")
    shown = f". It would say, in {'; in '.join(readings)}" if readings else ""
    return (
        f"line {number} is not valid UTF-8 (byte {at + 1} of the line is 0x{line[at]:02x}){shown}. "
        "Save the file as UTF-8, e.g. with iconv -f ENCODING -t utf-8"
    )
