"""Tokenised rows of a dataset on the data volume: built once, then read by row.

A file holds the tokens of up to ROWS rows of one segment. Its name identifies the segment and part;
its folder identifies the tokenizer, template and options. A file under its final name is whole.
Files are mapped into memory, a few at a time, because a dataset may be larger than memory.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from learner.batch.sft_rows import RowTokenizer, TokenRow, UnusableRow
from learner.batch.sft_steps import Lengths
from learner.persist.disk_retry import Disk
from learner.slices import RankPart
from services.contracts.config.data import SFTData
from services.contracts.records import DatasetRecord
from services.contracts.rows.preference import Preferred
from services.datasets import DatasetReader
from services.runtime.file_lock import file_lock
from services.runtime.logs import get_logger
from services.volume import Volume, written_beside

log = get_logger(__name__)

ROWS = 8192
"""Rows of a file: seconds of work, which a crash repeats."""
BATCH_ROWS, BATCH_TOKENS = 1024, 1 << 22
"""Largest record batch, which is built in memory."""
OPEN_FILES = 32
KEPT = 4
"""Folders of a dataset that are kept: the last used ones, and those that a run reads now."""
LARGEST = b"headrace.largest"
"""Metadata of a record batch: its largest token id, so it can be found without reading all
tokens."""
SCHEMA = pa.schema(
    [
        ("tokens", pa.large_list(pa.uint32())),
        ("spans", pa.large_list(pa.int32())),
        ("sizes", pa.large_list(pa.int16())),
    ],
    metadata={b"headrace.tokens": b"4"},
)


def cache_key(tokenizer: Any, data: SFTData, answer: Preferred | None = None) -> str:
    """Return a key of everything that decides how rows become tokens: tokenizer, template, options,
    the answer of a pair, and the format of the files."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    vocabulary = (
        backend.to_str() if backend is not None else json.dumps(sorted(tokenizer.get_vocab()))
    )
    names = ("bos_token_id", "eos_token_id", "unk_token_id")
    kept = ("system", "template", "chat_template", "chat_template_kwargs")
    options = {name: getattr(data, name) for name in kept}
    key = {
        "tokenizer": xxhash.xxh3_128_hexdigest(vocabulary.encode()),
        "chat_template": tokenizer.chat_template,
        "special": [getattr(tokenizer, name) for name in names],
        "options": options | ({"answer": answer} if answer else {"train_on": data.train_on}),
        "schema": SCHEMA.metadata[b"headrace.tokens"].decode(),
    }
    return xxhash.xxh3_64_hexdigest(json.dumps(key, sort_keys=True).encode())


class TokenFile(NamedTuple):
    """The rows of a dataset in one file."""

    file: Path
    start: int
    """First row, in the dataset."""
    stop: int


class TokenCache:
    def __init__(self, volume: Volume, record: DatasetRecord, key: str) -> None:
        self._volume, self._record = volume, record
        self._folder = volume.path(f"datasets/{record.id}/tokens/{key}")
        self._pieces = list(_pieces(record, self._folder))
        self._starts = [piece.start for piece in self._pieces]
        self._open: OrderedDict[int, _Mapped] = OrderedDict()
        self._held: _FolderLock | None = None

    @property
    def name(self) -> str:
        return self._record.name

    def build(
        self,
        tokenizer: RowTokenizer,
        part: RankPart,
        disk: Disk,
        interrupted: Callable[[int, int], bool],
    ) -> bool:
        """Build `part` of the missing files. Return False if `interrupted`, which is called
        before each file with the finished and the total number of rows. Raises UnusableRow,
        CannotWrite."""
        self._hold()
        if not all(_usable(piece.file) for piece in self._pieces):
            self._evict()
        elif self._pieces:
            # Marked as used, so that the run's next dataset does not evict it as the oldest.
            os.utime(self._folder)
        # A part of all files, not of the missing files: ranks that look later see fewer missing
        # files.
        for piece in self._pieces[part.number :: part.count]:
            if _usable(piece.file):
                continue
            if interrupted(piece.start, self._record.rows):
                return False
            asyncio.run(self._build(piece, tokenizer, disk))
            self._hold()
        return True

    def lengths(self) -> tuple[Lengths, int]:
        """Return the lengths of all rows, and the largest token id. Raises FileNotFoundError before
        all files are built."""
        self._hold()
        os.utime(self._folder)
        tokens, first, largest = [], [], 0
        for piece in self._pieces:
            # Not kept open: each file is read once here.
            mapped = _Mapped(piece.file)
            tokens.append(mapped.lengths)
            first.append(mapped.first)
            largest = max(largest, mapped.largest)
        nothing = np.zeros(0, np.int32)
        return Lengths(
            np.concatenate([nothing, *tokens]), np.concatenate([nothing, *first])
        ), largest

    def row(self, index: int) -> TokenRow:
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        mapped = self._open.get(number)
        if mapped is None:
            mapped = self._open[number] = _Mapped(self._pieces[number].file)
            if len(self._open) > OPEN_FILES:
                self._open.popitem(last=False)
        self._open.move_to_end(number)
        return mapped.row(index - self._starts[number])

    async def _build(self, piece: TokenFile, tokenizer: RowTokenizer, disk: Disk) -> None:
        async with file_lock(piece.file.with_name(f".{piece.file.name}.lock")):
            # Left by a process that was killed. The lock ensures that no other process is writing
            # it.
            for left in piece.file.parent.glob(f".{piece.file.name}.*"):
                if left.suffix != ".lock":
                    left.unlink()
            # Another run on this host may have built it meanwhile.
            if not _usable(piece.file):
                disk.retry(
                    str(piece.file.relative_to(self._volume.root)),
                    lambda: self._write(piece, tokenizer),
                )

    def _write(self, piece: TokenFile, tokenizer: RowTokenizer) -> None:
        # Opened for each file: the mapped memory of a large dataset would add up.
        reader = DatasetReader(self._volume, self._record)
        rows: list[TokenRow] = []
        tokens = 0
        with (
            written_beside(piece.file) as beside,
            pa.OSFile(str(beside), "wb") as sink,
            pa.ipc.new_file(sink, SCHEMA) as writer,
        ):
            for index in range(piece.start, piece.stop):
                try:
                    rows.append(tokenizer.row(reader.row(index), index))
                except UnusableRow as error:
                    raise UnusableRow(f"in {self.name}, {error}") from error
                tokens += len(rows[-1].tokens)
                if len(rows) == BATCH_ROWS or tokens >= BATCH_TOKENS or index + 1 == piece.stop:
                    largest = max(int(row.tokens.max()) for row in rows)
                    writer.write_batch(_batch(rows), {LARGEST: str(largest).encode()})
                    rows, tokens = [], 0

    def _hold(self) -> None:
        """Lock the folder, once it exists, against eviction by runs of other pools, for this
        object's lifetime: files are opened at any time."""
        while self._held is None and self._folder.exists():
            with contextlib.suppress(FileNotFoundError):
                held = _FolderLock(self._folder, fcntl.LOCK_SH)
                # The folder may have been deleted and created again in between.
                if held.at(self._folder):
                    self._held = held

    def _evict(self) -> None:
        folders = [path for path in self._folder.parent.glob("*") if path != self._folder]
        for path in sorted(folders, key=_used)[: max(len(folders) + 1 - KEPT, 0)]:
            with contextlib.suppress(FileNotFoundError, BlockingIOError):
                held = _FolderLock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
                del held


class _FolderLock:
    """A lock on a folder. It ends with this object or its process."""

    def __init__(self, folder: Path, kind: int) -> None:
        """Raises FileNotFoundError, and BlockingIOError if `kind` does not wait."""
        self._descriptor: int | None = None
        self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._descriptor, kind)
        except BlockingIOError:
            raise
        except OSError as error:
            # A network file system may not support locks on folders: the last used folders still
            # stay.
            log.debug("a folder of tokens cannot be locked", folder=str(folder), reason=str(error))

    def at(self, folder: Path) -> bool:
        """Whether the lock is on the current `folder`."""
        assert self._descriptor is not None
        return os.path.samestat(os.fstat(self._descriptor), folder.stat())

    def __del__(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)


class _Mapped:
    def __init__(self, path: Path) -> None:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        read = map(reader.get_batch_with_custom_metadata, range(reader.num_record_batches))
        batches, metadata = zip(*read, strict=True)
        self._largest = [int(entry[LARGEST]) for entry in metadata]
        self._columns = [[_column(batch.column(i)) for i in range(3)] for batch in batches]
        self._ends = np.cumsum([batch.num_rows for batch in batches])

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """[n] tokens of each row."""
        return np.concatenate([np.diff(c[0][0]) for c in self._columns]).astype(np.int32)

    @property
    def first(self) -> npt.NDArray[np.int32]:
        """[n] first token in the loss of each row. Every row has one."""
        return np.concatenate([c[1][1][c[1][0][:-1]] for c in self._columns]).astype(np.int32)

    @property
    def largest(self) -> int:
        return max(self._largest)

    def row(self, index: int) -> TokenRow:
        number = int(np.searchsorted(self._ends, index, side="right"))
        inside = index - (int(self._ends[number - 1]) if number else 0)
        tokens, spans, sizes = (
            values[offsets[inside] : offsets[inside + 1]]
            for offsets, values in self._columns[number]
        )
        return TokenRow(tokens, spans.reshape(-1, 2), sizes)


def _column(column: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    return column.offsets.to_numpy(), column.values.to_numpy()


def _batch(rows: Sequence[TokenRow]) -> pa.RecordBatch:
    columns = []
    for values, kind in (
        ([row.tokens for row in rows], np.uint32),
        ([row.spans.ravel() for row in rows], np.int32),
        ([row.sizes for row in rows], np.int16),
    ):
        offsets = np.cumsum([0, *(len(value) for value in values)])
        flat = np.concatenate(values).astype(kind)
        columns.append(pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(flat)))
    return pa.record_batch(columns, SCHEMA)


def _pieces(record: DatasetRecord, folder: Path) -> Iterator[TokenFile]:
    start = 0
    for segment in record.segments:
        for number, first in enumerate(range(0, segment.rows, ROWS)):
            file = folder / f"{segment.xxh3}-{number:05d}.arrow"
            yield TokenFile(file, start + first, start + min(first + ROWS, segment.rows))
        start += segment.rows


def _usable(path: Path) -> bool:
    """Whether a file exists in the current format."""
    try:
        with pa.memory_map(str(path)) as source:
            return bool(pa.ipc.open_file(source).schema.metadata == SCHEMA.metadata)
    except (FileNotFoundError, pa.ArrowInvalid):
        return False


def _used(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:
        return 0.0
