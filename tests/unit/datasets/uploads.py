"""Uploads for the tests of datasets."""

import io
import json
from pathlib import Path
from typing import Any

from services.contracts.records import DatasetRecord
from services.contracts.rows.dataset import Row
from services.datasets import DatasetReader, Imported, SourceFile, import_files
from services.volume import Volume


def imported(root: Path, *files: tuple[str, bytes], **options: Any) -> Imported:
    """Import files, given as name and content, as the dataset `rows`."""
    sources = [SourceFile(io.BytesIO(content), name) for name, content in files]
    return import_files(root, sources, **({"name": "rows"} | options))


def rows_of(root: Path, result: Imported) -> list[Row]:
    """The rows of an imported dataset."""
    record = DatasetRecord(
        id=result.id, name="rows", rows=result.segment.rows, created=0, segments=[result.segment]
    )
    return DatasetReader(Volume(root), record).rows(range(result.segment.rows))


def as_lines(*rows: dict[str, Any]) -> bytes:
    """The rows as lines of JSON."""
    return "".join(json.dumps(row) + "\n" for row in rows).encode()
