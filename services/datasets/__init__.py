"""Datasets: from an uploaded file to immutable Arrow segments, and back to rows by index.

`columns` decides which column is the prompt, `sources` reads the formats, `segments` writes and
names the files, `importing` puts the three together, `reader` is what rollout workers and the
learner use. No Redis and no HTTP in here: records are handed in and handed back.
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
