"""The report of a run or a chain: `report.html`, which needs no other file, and `report.md`.

`facts` holds the API's data of a run. `run_sections` and `chain_sections` turn it into sections.
`plots` draws. `rendering` fills one template for each format, and writes the files, for the
command line and for `python -m services.report`, which the gateway starts when a run ends.
Names, prompts and answers come from outside: `rendering` escapes every text.
"""

from services.report.chain_sections import chain_sections
from services.report.facts import Facts
from services.report.rendering import as_html, as_markdown, write
from services.report.run_sections import sections

__all__ = ["Facts", "as_html", "as_markdown", "chain_sections", "sections", "write"]
