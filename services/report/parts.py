"""The parts of a report: `run_sections` and `chain_sections` make them, and the templates show them
by their `kind`."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Paragraph:
    text: str
    kind = "paragraph"


@dataclass(frozen=True)
class Table:
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    kind = "table"


@dataclass(frozen=True)
class Code:
    """Text in a fixed font, with its line ends."""

    text: str
    kind = "code"


@dataclass(frozen=True)
class Picture:
    """A plot as a PNG. `name` is its file's, without a suffix: letters, digits and `-`."""

    name: str
    alt: str
    png: bytes
    kind = "picture"

    @property
    def base64(self) -> str:
        return b64encode(self.png).decode()


Part = Paragraph | Table | Code | Picture


@dataclass(frozen=True)
class ReportSection:
    title: str
    parts: Sequence[Part]
