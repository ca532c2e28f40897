"""A report as one HTML page without scripts, and as Markdown with plots in files.

Each format has one template. Names, prompts and answers come from outside: every expression of a
template is escaped, except the output of the filters `escaped` and `fenced`.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from services.report.parts import Picture, ReportSection
from services.runtime.terminal import one_line, visible
from services.volume import written_beside

SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&@]|:(?=//)|(?<=www)\.|^[-+=])")
"""Characters that get a backslash: markup anywhere, links of some flavours, and the beginning of a
list or a heading."""
NUMBERED = re.compile(r"^(\d+)([.)])(?=\s|$)")
PAGE, TEXT = "report.html", "report.md"
PLOTS = "plots"
"""The folder of the plots."""


class Escaped(str):
    """Markdown that needs no more escaping."""


def as_html(title: str, sections: Sequence[ReportSection]) -> str:
    return _template("report.html.jinja").render(title=title, sections=sections)


def as_markdown(title: str, sections: Sequence[ReportSection]) -> str:
    """Return the text. Its pictures are in the folder PLOTS."""
    text = _template("report.md.jinja").render(title=title, sections=sections, plots=PLOTS)
    return text.rstrip() + "\n"


@cache
def _template(name: str) -> Template:
    is_html = ".html" in name
    finalize: Callable[[str], str] = visible if is_html else _escaped
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        autoescape=is_html,
        finalize=finalize,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"fenced": fenced, "escaped": Escaped}
    return environment.get_template(name)


def fenced(text: str) -> Escaped:
    """A block of code that `text` cannot end."""
    shown = visible(text)
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", shown)), 3)
    return Escaped(f"{fence}\n{shown}\n{fence}")


def _escaped(text: str) -> str:
    """Escape `text` for one line of Markdown, unless a filter has."""
    if isinstance(text, Escaped):
        return text
    return NUMBERED.sub(r"\1\\\2", SPECIAL.sub(r"\\\1", one_line(text)))


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
