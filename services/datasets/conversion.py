"""Read the rows of uploaded files one at a time, in the order of the files."""

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, BinaryIO, cast

from services.contracts.rows.dataset import Row
from services.contracts.rows.preference import PAIR
from services.datasets.bad_rows import BadRows
from services.datasets.columns import ColumnMapping, Source, guessed_answer, has, row_from
from services.datasets.file_formats import Format, guess_format, read_rows
from services.datasets.findings import Findings, same_answers
from services.datasets.known_files import KnownFile
from services.datasets.row_checks import DatasetError, names_in
from services.datasets.text_lines import check_encoding
from services.datasets.unpacking import MAGIC, unpacked


@dataclass(frozen=True)
class SourceFile:
    """An uploaded file, which can be read from its beginning again."""

    file: BinaryIO
    name: str


class Conversion:
    """Yields the rows of several files, and counts findings on the way."""

    def __init__(
        self,
        files: Sequence[SourceFile],
        format: Format | None,
        mapping: ColumnMapping | KnownFile,
        most: int,
        *,
        skips_bad_rows: bool = False,
    ) -> None:
        """`most`: bytes that a packed file may hold."""
        self._files, self._format, self._mapping, self._most = files, format, mapping, most
        self.notes: list[str] = []
        """Guesses about how the files are read."""
        self.findings = Findings(None)
        self.bad_rows = BadRows()
        self._skips_bad_rows = skips_bad_rows
        self._first = ""
        self._absent = set(mapping.prompts) if isinstance(mapping, ColumnMapping) else set()
        """Columns of the prompt that the mapping names and no row has so far."""

    @property
    def mapping(self) -> ColumnMapping | KnownFile:
        """Return the mapping that was used, with its guesses."""
        resolved = self.findings.resolved()
        return self._mapping if resolved is None else resolved

    def rows(self) -> Iterator[Row]:
        """Yield all rows but the bad ones. Raises DatasetError, which names the place, and the file
        if there are several; for bad rows at the end, unless they are skipped."""
        formats = [self.opened(source) for source in self._files]
        first_format, first_columns = formats[0][1], None
        for source, (file, format) in zip(self._files, formats, strict=True):
            if format != first_format:
                raise DatasetError(
                    f"{self._files[0].name} is {first_format} and {source.name} is {format}: "
                    "upload files of one format as one dataset"
                )
            notes: list[str] = []
            named = source.name if len(self._files) > 1 else ""
            on_bad = partial(self.bad_rows.add, file=named)
            pairs = self._placed(source.name, read_rows(file, format, notes, on_bad))
            first = next(pairs, None)
            if first is None and self.bad_rows.count:
                raise self.bad_rows.refusal()
            if first is None:
                raise DatasetError(f"{source.name} has no rows")
            columns = set(first[1])
            if first_columns is None:
                first_columns = columns
                self._begin(first, format)
            elif format != "jsonl" and columns != first_columns:
                raise DatasetError(
                    _other_columns(self._files[0].name, source.name, first_columns, columns)
                )
            yield from self._accepted(chain([first], pairs), format)
            self.notes += [note for note in notes if note not in self.notes]
        if self.bad_rows.count and not (self._skips_bad_rows and len(self.findings)):
            raise self.bad_rows.refusal()
        if not len(self.findings):
            raise DatasetError(
                "the chosen answer of every row equals the rejected one: there is nothing to learn"
            )

    def check_columns(self) -> None:
        """Raise DatasetError for a column of the prompt that the mapping names and no row has."""
        if self._absent:
            raise DatasetError(
                f"no row has a column {names_in(sorted(self._absent))} to take the prompt from"
            )

    def opened(self, source: SourceFile) -> tuple[BinaryIO, Format]:
        """Unpack a file. Return it with its format. Raises DatasetError."""
        file, name = source.file, source.name
        file.seek(0)
        head = file.read(16)
        if head.startswith(MAGIC):
            file = cast(BinaryIO, unpacked(file, name, self._most))
            name = name.removesuffix(".gz")
            head = file.read(16)
        if not head:
            raise DatasetError(f"{name} is empty: it has no rows")
        check_encoding(name, head)
        format = self._format or guess_format(name, head)
        if format == "parquet" and file is not source.file:
            # Its end is read first.
            file.seek(0)
            file = io.BytesIO(file.read())
        return file, format

    def _placed(
        self, name: str, pairs: Iterator[tuple[str, dict[str, Any]]]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        if len(self._files) == 1:
            yield from pairs
            return
        try:
            for place, source in pairs:
                yield f"{name}, {place}", source
        except DatasetError as error:
            raise DatasetError(f"{name}: {error}") from None

    def _begin(self, first: tuple[str, Source], format: Format) -> None:
        """Make the mapping's guesses by the first row of the first file."""
        self._first = first[0]
        if isinstance(self._mapping, ColumnMapping):
            self._mapping = self._mapping.resolved(
                first[1], first[0] if format == "jsonl" else None
            )
            self.findings = Findings(self._mapping)

    def _accepted(
        self, pairs: Iterable[tuple[str, dict[str, Any]]], format: Format
    ) -> Iterator[Row]:
        mapping = self._mapping
        for place, source in pairs:
            try:
                row = self._row(place, source, format)
            except DatasetError as error:
                self.bad_rows.add(error)
                continue
            if isinstance(mapping, ColumnMapping):
                self._absent -= {name for name in self._absent if has(source, name)}
                if mapping.answer == PAIR and same_answers(row.answer):
                    self.findings.equal_pairs += 1
                    continue
            self.findings.add(source, row)
            yield row

    def _row(self, place: str, source: dict[str, Any], format: Format) -> Row:
        """Return a row of the dataset. Raises DatasetError."""
        if isinstance(self._mapping, KnownFile):
            return self._mapping.row(place, source)
        if format == "jsonl" and self._mapping.answer is None:
            _check_unanswered(place, source, self._mapping, self._first)
        return row_from(place, source, self._mapping)


def _other_columns(first: str, other: str, expected: set[str], columns: set[str]) -> str:
    parts = [
        f"has no column {names_in(sorted(expected - columns))}" if expected - columns else "",
        f"has a column {names_in(sorted(columns - expected))} more" if columns - expected else "",
    ]
    return (
        f"{other} {' and '.join(part for part in parts if part)}, compared with {first}: files of "
        "one dataset have the same columns; upload it under another name"
    )


def _check_unanswered(
    place: str, source: dict[str, Any], mapping: ColumnMapping, first: str
) -> None:
    """For a dataset whose first row, which decides the mapping, has no answer: raise DatasetError
    if this row has one. Its answer would end up in the unmapped columns."""
    if name := guessed_answer(source, mapping.prompts):
        raise DatasetError(
            f"{first} has no answer, and {place} has one (column {name!r}): give every row one, "
            "null where there is none"
        )
