"""The parts of a report: what `content` makes and `html` and `markdown` write."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Paragraph:
    """Plain text."""

    text: str


@dataclass(frozen=True)
class Table:
    """Plain texts in columns."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Code:
    """Text as it stands."""

    text: str


@dataclass(frozen=True)
class Picture:
    """A plot, as a PNG. `name`: its file's, without a suffix; of letters, digits and `-` alone."""

    name: str
    alt: str
    png: bytes


Part = Paragraph | Table | Code | Picture


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it."""

    title: str
    parts: Sequence[Part]
