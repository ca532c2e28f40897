"""A report as one HTML page, without scripts and without another file."""

import base64
from collections.abc import Iterator, Sequence
from html import escape

from services.report.parts import Code, Paragraph, Part, Picture, Section, Table
from services.runtime.terminal import visible

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: #1b1f24; background: #fff }
h1 { font-size: 1.6rem } h2 { font-size: 1.2rem; margin-top: 2.2rem }
table { border-collapse: collapse; margin: .8rem 0 }
th, td { border: 1px solid #d8dee4; padding: .25rem .6rem; text-align: left; vertical-align: top;
  overflow-wrap: anywhere }
th { background: #f3f5f7 }
pre { background: #f3f5f7; padding: .6rem; white-space: pre-wrap; overflow-wrap: anywhere }
img { max-width: 100% }
"""
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def as_html(title: str, sections: Sequence[Section]) -> str:
    """The page."""
    return "".join(_page(title, sections))


def _page(title: str, sections: Sequence[Section]) -> Iterator[str]:
    yield '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">\n'
    yield f"<title>{_text(title)}</title><style>{STYLE}</style></head><body>\n"
    yield f"<h1>{_text(title)}</h1>\n"
    for section in sections:
        yield f"<h2>{_text(section.title)}</h2>\n"
        for part in section.parts:
            yield f"{_part(part)}\n"
    yield "</body></html>\n"


def _part(part: Part) -> str:
    match part:
        case Paragraph(text):
            return f"<p>{_text(text)}</p>"
        case Code(text):
            return f"<pre>{_text(text)}</pre>"
        case Table(header, rows):
            head = "".join(f"<th>{_text(cell)}</th>" for cell in header)
            body = "".join(
                f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in rows
            )
            return f"<table><tr>{head}</tr>{body}</table>"
        case Picture(_, alt, png):
            data = base64.b64encode(png).decode()
            return f'<img alt="{_text(alt)}" src="data:image/png;base64,{data}">'


def _text(text: str) -> str:
    return escape(visible(text))
