"""Lists of rows that become tables, the files of an upload, and a run as HTML. No I/O but files."""

import glob
import hashlib
import html
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

from headrace.errors import NotInstalled
from headrace.models import RunRecord, RunSummary
from headrace.request import Files

Progress = Callable[[int, int], object]
"""Takes the bytes that were sent and the bytes in all."""
LARGE_BYTES = 32 << 20
"""Files that are larger together are sent in parts, so that a broken upload goes on."""
PART_BYTES = 8 << 20
FINGERPRINT = 1 << 20
ENDINGS = ("jsonl", "ndjson", "json", "csv", "tsv", "parquet", "pq", "tar", "tgz")
SUFFIXES = tuple(f".{ending}{packed}" for ending in ENDINGS for packed in ("", ".gz"))
"""How the names of files end that are taken from a folder."""


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

    def __init__(self, file: BinaryIO, before: int, total: int, progress: Progress | None) -> None:
        """`before`: bytes of the files before this one; `total`: bytes of all files."""
        self._file, self._before, self._total, self._progress = file, before, total, progress
        self.seek, self.tell, self.close = file.seek, file.tell, file.close

    def read(self, size: int = -1) -> bytes:
        """Read, and report the position in the file."""
        piece = self._file.read(size)
        if piece and self._progress is not None:
            self._progress(self._before + self._file.tell(), self._total)
        return piece


def named_or_rows(
    data: str | Path | Iterable[str | Path] | Iterable[Mapping[str, Any]],
) -> tuple[list[str | Path], list[Mapping[str, Any]]]:
    """Return the names of files that `data` is, or else the rows."""
    given = [data] if isinstance(data, str | Path) else list(data)
    named = [each for each in given if isinstance(each, str | Path)]
    rows = [each for each in given if not isinstance(each, str | Path)]
    if named and rows:
        raise TypeError("name files, or give rows: not both in one upload")
    return named, rows


def paths_in(named: Iterable[str | Path]) -> list[Path]:
    """Return the files that are named: files, folders, or patterns such as `train-*.parquet`. The
    files of a folder or a pattern come in the order of their names and numbers. Raises
    FileNotFoundError."""
    return [path for each in named for path in _paths(str(each))]


def _paths(name: str) -> list[Path]:
    if Path(name).is_file():
        return [Path(name)]
    inside = glob.escape(name) if Path(name).is_dir() else ""
    pattern = [f"{inside}/*{suffix}" for suffix in SUFFIXES] if inside else [name]
    names = {each for part in pattern for each in glob.glob(part) if Path(each).is_file()}
    if not names:
        raise FileNotFoundError(f"{name!r} is no file, folder or pattern of dataset files")
    return [Path(each) for each in sorted(names, key=_by_numbers)]


def _by_numbers(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts part-2 before part-10."""
    return [(int(p) if p.isdecimal() else -1, p) for p in re.split(r"([0-9]+)", name)]


def files_of(paths: Sequence[Path], progress: Progress | None) -> Files:
    """Return what opens these files."""
    total = sum(path.stat().st_size for path in paths)

    def opened() -> list[tuple[str, Any]]:
        starts = accumulate((path.stat().st_size for path in paths), initial=0)
        return [
            (path.name, Sending(path.open("rb"), start, total, progress))
            for path, start in zip(paths, starts, strict=False)
        ]

    return opened


def file_of_rows(
    rows: Iterable[Mapping[str, Any]], name: str | None, progress: Progress | None
) -> Files:
    """Return what opens a file of these rows."""
    lines = (json.dumps(dict(row), ensure_ascii=False) + "\n" for row in rows)
    text = "".join(lines).encode()
    return lambda: [(f"{name or 'rows'}.jsonl", Sending(io.BytesIO(text), 0, len(text), progress))]


def fingerprint(path: Path) -> str:
    """Tell a file from others of its name and size: its beginning, its end, and when it
    changed."""
    stat, digest = path.stat(), hashlib.sha256()
    with path.open("rb") as file:
        digest.update(file.read(FINGERPRINT))
        file.seek(max(0, stat.st_size - FINGERPRINT))
        digest.update(file.read(FINGERPRINT))
    return f"{stat.st_mtime_ns} {digest.hexdigest()}"


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
