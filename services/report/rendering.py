"""A report as one HTML page without scripts, which needs no other file.

Names, prompts and answers come from outside: every expression of the template is escaped, except
drawings, which are numbers.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from headrace.terminal import visible
from services.report.charts import draw, short
from services.report.parts import ReportSection
from services.volume import written_beside


def as_html(title: str, sections: Sequence[ReportSection]) -> str:
    return _template().render(title=title, sections=sections)


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        autoescape=True,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["short"] = short
    environment.filters["drawn"] = draw
    return environment.get_template("report.html.jinja")


def _shown(value: Any) -> Any:
    # A drawing is Markup, which the template calls safe.
    return visible(value) if type(value) is str else value


def write(page: Path, title: str, sections: Sequence[ReportSection]) -> None:
    """Write the page. Raise OSError."""
    with written_beside(page) as beside:
        beside.write_text(as_html(title, sections), encoding="utf-8")
