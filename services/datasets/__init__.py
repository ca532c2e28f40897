"""Datasets: from an uploaded file to immutable Arrow segments, and back to rows by index.

`file_formats` reads the formats, `columns` maps columns to prompt and answer, `known_files` those
of well-known files, `findings` counts probable mistakes, `segments` writes and names
the files; `conversion` and `upload` combine them. Rollout workers and the learner use
`stored_rows`.
Imports neither Redis nor HTTP: callers pass records in and get records back.
"""

from services.datasets.columns import ColumnMapping
from services.datasets.conversion import SourceFile
from services.datasets.file_formats import Format, UnsupportedFormat
from services.datasets.import_process import import_in_child, preview_in_child
from services.datasets.known_files import KNOWN_FILES, KnownFile, known_file
from services.datasets.row_checks import DatasetError
from services.datasets.row_overlap import shared_rows
from services.datasets.row_parts import rows_with_parts
from services.datasets.stored_rows import DatasetReader
from services.datasets.upload import Imported, append_rows, import_files
