"""Datasets: from an uploaded file to immutable Arrow segments, and back to rows by index.

`columns` maps columns to prompt and answer, `sources` reads the formats, `segments` writes and
names the files, `importing` combines the three; rollout workers and the learner use `reader`.
Imports neither Redis nor HTTP: callers pass records in and get records back.
"""

from services.datasets.columns import ColumnMapping, DatasetError
from services.datasets.importing import Imported, append_rows, import_file
from services.datasets.reader import DatasetReader
from services.datasets.sources import Format, UnsupportedFormat, guess_format

__all__ = [
    "ColumnMapping",
    "DatasetError",
    "DatasetReader",
    "Format",
    "Imported",
    "UnsupportedFormat",
    "append_rows",
    "guess_format",
    "import_file",
]
