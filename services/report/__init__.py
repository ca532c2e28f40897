"""What became of a run or a chain, in one document: `report.html`, which needs no other file, or
`report.md`.

`facts` holds what the API says of a run, `content` and `chains` turn it into sections, `plots`
draws, `html` and `markdown` make texts of them: all pure. `writing` writes the files, for the
command line and for `python -m services.report`, which the gateway starts when a run has ended.
Names, prompts and answers come from outside: `html` and `markdown` escape every text.
"""

from services.report.chains import chain_sections
from services.report.content import sections
from services.report.facts import Facts
from services.report.html import as_html
from services.report.markdown import as_markdown
from services.report.writing import write

__all__ = ["Facts", "as_html", "as_markdown", "chain_sections", "sections", "write"]
