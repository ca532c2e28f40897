"""What became of a run, in one document: `report.html`, which needs no other file, or `report.md`.

`facts` holds what the API says of a run, `content` turns it into sections, `plots` draws, `html`
and `markdown` write. All of it is pure: the command line asks the API and writes the files. Names,
prompts and answers come from outside: `html` and `markdown` escape every text.
"""

from services.report.content import sections
from services.report.facts import Facts
from services.report.html import as_html
from services.report.markdown import as_markdown

__all__ = ["Facts", "as_html", "as_markdown", "sections"]
