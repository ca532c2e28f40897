"""The parts of a report: `run_sections` and `chain_sections` make them, and the template shows them
by their `kind`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from services.report.charts import HEIGHT, WIDTH, Curve


@dataclass(frozen=True)
class Paragraph:
    text: str
    is_alarm: bool = False
    kind = "paragraph"


@dataclass(frozen=True)
class Figures:
    """The first thing to read: each with a label, a value and a remark."""

    figures: Sequence[tuple[str, str, str]]
    kind = "figures"


@dataclass(frozen=True)
class Table:
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    kind = "table"


@dataclass(frozen=True)
class Code:
    """Text in a fixed font, with its line ends. With a `title` it is folded."""

    text: str
    title: str = ""
    kind = "code"


@dataclass(frozen=True)
class Chart:
    name: str
    title: str
    unit: str
    curves: Sequence[Curve]
    size = f"0 0 {WIDTH} {HEIGHT}"

    @property
    def alt(self) -> str:
        return f"{self.title}: {', '.join(curve.label for curve in self.curves)}"


@dataclass(frozen=True)
class Charts:
    """Charts side by side."""

    charts: Sequence[Chart]
    kind = "charts"


Part = Paragraph | Figures | Table | Code | Charts


@dataclass(frozen=True)
class ReportSection:
    title: str
    parts: Sequence[Part]
    layout: Literal["", "step", "small"] = ""
    """`step`: the title of the sections of a chain's step. `small`: two stand side by side."""
