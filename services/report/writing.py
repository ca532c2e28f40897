"""Write the files of a report. Each is complete or missing."""

from collections.abc import Sequence
from pathlib import Path

from services.report.parts import Picture, ReportSection
from services.report.rendering import PLOTS, as_html, as_markdown
from services.volume import written_beside

PAGE, TEXT = "report.html", "report.md"


def write(folder: Path, title: str, sections: Sequence[ReportSection]) -> None:
    """Write `report.html`, and `report.md` with its plots, into `folder`. Raise OSError."""
    for section in sections:
        for part in section.parts:
            if isinstance(part, Picture):
                with written_beside(folder / PLOTS / f"{part.name}.png") as beside:
                    beside.write_bytes(part.png)
    texts = {TEXT: as_markdown(title, sections), PAGE: as_html(title, sections)}
    # The page comes last: if it is there, the report is complete.
    for name, text in texts.items():
        with written_beside(folder / name) as beside:
            beside.write_text(text, encoding="utf-8")
