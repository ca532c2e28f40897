"""The report of a run, as a notebook shows it and as a file."""

import html
from pathlib import Path


class Report(str):
    """The report of a run: the text of an HTML page that needs no other file."""

    def save(self, path: str | Path) -> Path:
        """Write the page, and return its file. `path`: a name that ends in .html or .htm is the
        file itself; any other name is a folder, in which the page is `report.html`."""
        file = Path(path)
        if file.suffix.lower() not in (".html", ".htm"):
            file = file / "report.html"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(self, encoding="utf-8")
        return file

    def _repr_html_(self) -> str:
        # In a frame the page's styles and scripts do not reach the notebook.
        return (
            f'<iframe srcdoc="{html.escape(self)}" sandbox="allow-scripts" '
            'style="width: 100%; height: 600px; border: 0"></iframe>'
        )
