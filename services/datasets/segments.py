"""Arrow IPC segments: the files that hold rows on the data volume.

A segment never changes after its rename and is named by its checksum. Three string columns hold
JSON (`prompt`, `answer`, `columns`), so that any row fits one schema. Every record batch but the
last has BATCH rows: the place of a row is arithmetic, and reading one touches one batch.
"""

import os
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from services.contracts.records import DatasetSegment
from services.contracts.rows.dataset import Row
from services.datasets.row_checks import DatasetError
from services.volume import checksum, fsync, opened_by_umask

UNPUBLISHED = ".incoming-"
"""The prefix of files that are not published yet."""
BATCH = 1024
"""Rows per record batch."""
SCHEMA = pa.schema(
    [(name, pa.large_utf8()) for name in ("prompt", "answer", "columns")],
    metadata={b"headrace.segment": b"2"},
)
COLUMNS = tuple(SCHEMA.names)


def write_segment(rows: Iterable[Row], root: Path, dataset: str) -> DatasetSegment:
    """Write `rows` durably as a segment of `dataset` under the data volume's `root`. If `rows`
    raises, so does this function, and no file is left."""
    path = unpublished_file(root)
    try:
        count = write_rows(rows, path)
        return publish(path, checksum(path), count, root, dataset)
    finally:
        path.unlink(missing_ok=True)


def publish(path: Path, xxh3: str, rows: int, root: Path, dataset: str) -> DatasetSegment:
    """Move the segment at `path`, which has this checksum, durably to its place."""
    size = path.stat().st_size
    name = f"datasets/{dataset}/segment-{xxh3}.arrow"
    target = root / name
    target.parent.mkdir(parents=True, exist_ok=True)
    opened_by_umask(path)
    path.rename(target)
    fsync(target.parent)
    fsync(target.parent.parent)
    return DatasetSegment(file=name, rows=rows, bytes=size, xxh3=xxh3)


def unpublished_file(root: Path) -> Path:
    """Make an empty file on the data volume for rows that are not published yet."""
    folder = root / "datasets"
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=UNPUBLISHED, suffix=".arrow", dir=folder)
    os.close(descriptor)
    return Path(name)


def write_rows(rows: Iterable[Row], path: Path, most: int | None = None) -> int:
    """Write `rows` to the file at `path`, with fsync. Return their number. Raises DatasetError if
    the rows take more than `most` bytes, and the errors of `rows`."""
    count = size = 0
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
        # Rows wait as text until their batch is full, because text takes the least memory.
        source = (tuple(_json(getattr(row, name)) for name in COLUMNS) for row in rows)
        while True:
            batch = []
            for texts in islice(source, BATCH):
                size += sum(map(len, texts))
                if most is not None and size > most:
                    raise DatasetError(
                        f"its rows take more than {most >> 20} MiB: it repeats few values very "
                        "often, or is compressed too well. Upload fewer rows, or append them in "
                        "parts"
                    )
                batch.append(texts)
            if not batch:
                break
            columns = zip(*batch, strict=True)
            arrays = [pa.array(column, SCHEMA.types[0]) for column in columns]
            writer.write_batch(pa.record_batch(arrays, SCHEMA))
            count += len(batch)
    fsync(path)
    return count


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


class Segment:
    """Reads rows of a memory-mapped segment by their index. Raises DatasetError for a damaged file
    and for another schema version, and OSError, which names the file."""

    def __init__(self, path: Path) -> None:
        # Arrow's own errors do not name the file.
        path.open("rb").close()
        try:
            self._reader = pa.ipc.open_file(pa.memory_map(str(path)))
        except pa.ArrowInvalid as error:
            raise DatasetError(f"{path} is damaged ({error}): restore it from a backup") from None
        if self._reader.schema.metadata != SCHEMA.metadata:
            raise DatasetError(
                f"{path} was written by another version of Headrace: delete its dataset and "
                "upload the file again"
            )

    def row(self, index: int) -> Row:
        """Return the row at `index` (from 0). Raises IndexError beyond the end."""
        if index < 0:
            raise IndexError(f"row {index} of a segment")
        batch = self._reader.get_batch(index // BATCH)
        prompt, answer, columns = (
            msgspec.json.decode(batch.column(position)[index % BATCH].as_py())
            for position in range(len(COLUMNS))
        )
        return Row(prompt=prompt, answer=answer, columns=columns)

    def matching(self, columns: Sequence[str], pattern: str) -> NDArray[np.int64]:
        """Return the indices (from 0) of rows that match the regular expression `pattern`.

        A row matches if the JSON of any of `columns` does. Reads one batch at a time.
        """
        indices = [np.zeros(0, np.int64)]
        for number in range(self._reader.num_record_batches):
            batch = self._reader.get_batch(number)
            hits = (pc.match_substring_regex(batch.column(name), pattern) for name in columns)
            rows = reduce(pc.or_, hits).to_numpy(zero_copy_only=False)
            indices.append(number * BATCH + np.flatnonzero(rows))
        return np.concatenate(indices)

    def texts(self) -> Iterator[tuple[list[str], list[str]]]:
        """Yield the prompts and the answers of each batch, as the JSON that is stored."""
        for number in range(self._reader.num_record_batches):
            batch = self._reader.get_batch(number)
            yield batch.column(0).to_pylist(), batch.column(1).to_pylist()

    def hashes(self) -> NDArray[np.uint64]:
        """Hash each row's prompt and answer as they are stored. Reads one batch at a time."""
        hashes = array("Q")
        for prompts, answers in self.texts():
            hashes.extend(
                xxhash.xxh3_64_intdigest(f"{prompt}\n{answer}".encode())
                for prompt, answer in zip(prompts, answers, strict=True)
            )
        return np.frombuffer(hashes, np.uint64)
