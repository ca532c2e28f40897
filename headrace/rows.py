"""Lists of rows that become tables, the files of an upload, and a run as HTML. No I/O but files."""

import html
import io
import json
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from headrace.errors import NotInstalled
from headrace.models import RunRecord, RunSummary
from headrace.request import Files

Progress = Callable[[int, int], object]
"""Takes the bytes that were sent and the bytes in all."""


class Rows(list[dict[str, Any]]):
    """Rows by their column. They become a table of pandas or polars, if that is installed."""

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame`."""
        return _package("pandas").DataFrame(list(self))

    def to_polars(self) -> Any:
        """Return a `polars.DataFrame`."""
        return _package("polars").DataFrame(list(self), infer_schema_length=None)


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise NotInstalled(
            f"{name} is not installed: pip install {name}, or use the rows as they are, a list "
            "of dictionaries"
        ) from None


class Sending:
    """A file that reports what was read of it."""

    def __init__(self, file: BinaryIO, total: int, progress: Progress | None) -> None:
        self._file, self._total, self._progress = file, total, progress
        self.seek, self.tell, self.close = file.seek, file.tell, file.close

    def read(self, size: int = -1) -> bytes:
        """Read, and report the position in the file."""
        piece = self._file.read(size)
        if piece and self._progress is not None:
            self._progress(self._file.tell(), self._total)
        return piece


def files_of(
    data: str | Path | Iterable[Mapping[str, Any]], name: str | None, progress: Progress | None
) -> Files:
    """Return what opens the file `data`, or a file of the rows `data`."""
    if isinstance(data, str | Path):
        path, text = Path(data), b""
        total, filename = path.stat().st_size, path.name
    else:
        lines = (json.dumps(dict(row), ensure_ascii=False) + "\n" for row in data)
        path, text = None, "".join(lines).encode()
        total, filename = len(text), f"{name or 'rows'}.jsonl"

    def opened() -> list[tuple[str, Any]]:
        file: BinaryIO = io.BytesIO(text) if path is None else path.open("rb")
        return [(filename, Sending(file, total, progress))]

    return opened


def submission(
    recipe: str | None,
    model: str | None,
    dataset: str | None,
    config: Mapping[str, Any] | None,
    **fields: Any,
) -> dict[str, Any]:
    """Return the body of a submission: `model` and `dataset` become keys of the config."""
    whole = dict(config or {})
    for part, key, value in (("model", "path", model), ("data", "dataset", dataset)):
        if value is None:
            continue
        inner = whole.get(part, {})
        if not isinstance(inner, Mapping) or inner.get(key, value) != value:
            raise ValueError(f"config names {part}.{key} too: {inner!r}. Name it once")
        whole[part] = {**inner, key: value}
    body = {"recipe": recipe, "config": whole, **fields}
    return {key: value for key, value in body.items() if value is not None}


def as_html(record: RunRecord | RunSummary, address: str) -> str:
    """Return a line about a run for a notebook, with a link to its page."""
    steps = f"{record.step}" if record.max_steps is None else f"{record.step} of {record.max_steps}"
    parts = [record.state, f"step {steps}"]
    if record.reward is not None:
        parts.append(f"reward {record.reward:.4g}")
    parts += [each for each in (record.phase, record.reason) if each]
    link = html.escape(f"{address}/runs/{record.id}", quote=True)
    name, words = html.escape(record.name), html.escape(" · ".join(parts))
    return f'<a href="{link}">{name}</a> <code>{html.escape(record.id)}</code> {words}'
