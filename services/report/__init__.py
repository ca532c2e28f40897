"""The report of a run or a chain: one HTML page, which needs no other file.

`facts` holds the data of a run. `run_sections`, `curves` and `chain_sections` turn it into
sections. `charts` draws. `rendering` fills the template. The gateway starts `python -m
services.report` when a run ends, or when somebody asks for a report.
"""

from services.report.chain_sections import chain_sections
from services.report.facts import Facts
from services.report.rendering import as_html, write
from services.report.run_sections import sections

__all__ = ["Facts", "as_html", "chain_sections", "sections", "write"]
