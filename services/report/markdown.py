"""A report as Markdown, whose plots are files beside it."""

import re
from collections.abc import Iterator, Sequence

from services.report.parts import Code, Paragraph, Part, Picture, Section, Table
from services.runtime.terminal import one_line, visible

SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&@]|:(?=//)|(?<=www)\.|^[-+=])")
"""What gets a backslash: what may be markup anywhere, what some flavours make links of, and what
begins a list or a heading at the beginning of a line."""
NUMBERED = re.compile(r"^(\d+)([.)])(?=\s|$)")
PLOTS = "plots"
"""The folder of the plots."""


def as_markdown(title: str, sections: Sequence[Section]) -> str:
    """The text."""
    return "\n".join(_lines(title, sections))


def _lines(title: str, sections: Sequence[Section]) -> Iterator[str]:
    yield f"# {_text(title)}\n"
    for section in sections:
        yield f"## {_text(section.title)}\n"
        for part in section.parts:
            yield f"{_part(part)}\n"


def _part(part: Part) -> str:
    match part:
        case Paragraph(text):
            return _text(text)
        case Code(text):
            return fenced(text)
        case Table(header, rows):
            lines = [header, ["---"] * len(header), *rows]
            shown = [
                row if number == 1 else [_text(cell) for cell in row]
                for number, row in enumerate(lines)
            ]
            return "\n".join(f"| {' | '.join(row)} |" for row in shown)
        case Picture(name, alt, _):
            return f"![{_text(alt)}]({PLOTS}/{name}.png)"


def fenced(text: str) -> str:
    """As a block of code that `text` cannot end."""
    shown = visible(text)
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", shown)), 3)
    return f"{fence}\n{shown}\n{fence}"


def _text(text: str) -> str:
    return NUMBERED.sub(r"\1\\\2", SPECIAL.sub(r"\\\1", one_line(text)))
