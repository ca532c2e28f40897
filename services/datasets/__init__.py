"""Datasets: from an uploaded file to immutable Arrow segments, and back to rows by index.

`columns` maps columns to prompt and answer, `known_files` those of well-known files, `file_formats`
reads the formats, `segments` writes and names the files, `upload` combines them; rollout workers
and the learner use `stored_rows`.
Imports neither Redis nor HTTP: callers pass records in and get records back.
"""

from services.datasets.columns import ColumnMapping, DatasetError
from services.datasets.file_formats import Format, UnsupportedFormat, guess_format
from services.datasets.known_files import KNOWN_FILES, KnownFile, known_file
from services.datasets.row_overlap import shared_rows
from services.datasets.stored_rows import DatasetReader
from services.datasets.upload import Imported, append_rows, import_file

__all__ = [
    "KNOWN_FILES",
    "ColumnMapping",
    "DatasetError",
    "DatasetReader",
    "Format",
    "Imported",
    "KnownFile",
    "UnsupportedFormat",
    "append_rows",
    "guess_format",
    "import_file",
    "known_file",
    "shared_rows",
]
