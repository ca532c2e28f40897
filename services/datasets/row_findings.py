"""Count lengths and repetitions over the rows of a stored dataset.

A row takes 32 bytes of memory. A child process counts a large dataset, so that the gateway needs
none of it.
"""

import json
import resource
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from services.contracts.dataset_findings import (
    LengthBucket,
    RepeatedRow,
    Repetitions,
    RowFindings,
    TextLengths,
)
from services.contracts.rows.messages import in_one_piece
from services.datasets.row_checks import DatasetError
from services.datasets.segments import Segment

SMALL_BYTES = 2 << 20
"""Bytes of segments that are counted without a child, which takes 0.4 s to start."""
MEMORY_BYTES = 4 << 30
EXAMPLES = 3


def count_rows(segments: Sequence[Path]) -> RowFindings:
    """Count the rows of these segments, in a child process unless they are small. Raises
    DatasetError and OSError."""
    if sum(path.stat().st_size for path in segments) <= SMALL_BYTES:
        return counted(_texts(segments))
    child = subprocess.run(
        [sys.executable, "-c", f"import sys; from {__name__} import main; sys.exit(main())"],
        input=json.dumps([str(path) for path in segments]),
        capture_output=True,
        text=True,
        check=False,
    )
    if child.returncode != 0:
        raise DatasetError(
            f"its rows cannot be counted: {child.stderr.strip().rpartition(chr(10))[2][:300]}"
        )
    return RowFindings.model_validate_json(child.stdout)


def main() -> int:
    """Count the segments whose paths standard input lists. The child's part of `count_rows`."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    paths = [Path(path) for path in json.load(sys.stdin)]
    sys.stdout.write(counted(_texts(paths)).model_dump_json())
    return 0


def _texts(segments: Iterable[Path]) -> Iterator[tuple[list[str], list[str]]]:
    for path in segments:
        yield from Segment(path).texts()


def counted(batches: Iterable[tuple[list[str], list[str]]]) -> RowFindings:
    """Count rows, given as batches of prompts and of answers in JSON."""
    lengths: list[list[NDArray[np.int64]]] = [[], []]
    hashes: list[list[NDArray[np.uint64]]] = [[], []]
    for prompts, answers in batches:
        for at, texts in enumerate((prompts, answers)):
            lengths[at].append(np.array([_characters(text) for text in texts], np.int64))
        pairs = [f"{p}\n{a}" for p, a in zip(prompts, answers, strict=True)]
        for at, texts in enumerate((prompts, pairs)):
            digests = [xxhash.xxh3_64_intdigest(text.encode()) for text in texts]
            hashes[at].append(np.array(digests, np.uint64))
    of_prompts, of_answers = (np.concatenate([np.zeros(0, np.int64), *part]) for part in lengths)
    prompt, pair = (np.concatenate([np.zeros(0, np.uint64), *part]) for part in hashes)
    same_prompt, same_pair = _first_rows(prompt), _first_rows(pair)
    rows = np.arange(len(prompt))
    is_duplicate = same_pair < rows
    return RowFindings(
        prompts=_lengths(of_prompts) or _none(),
        answers=_lengths(of_answers),
        duplicates=_repetitions(is_duplicate, same_pair),
        other_answers=_repetitions((same_prompt < rows) & ~is_duplicate, same_prompt),
    )


def _characters(text: str) -> int:
    """Return the characters of a prompt or an answer, given as JSON; -1 if it is missing."""
    value = msgspec.json.decode(text)
    if value is None:
        return -1
    if isinstance(value, list) and all(isinstance(turn, dict) for turn in value):
        return sum(_written(in_one_piece(0, turn.get("content"))) for turn in value)
    return _written(value)


def _written(value: Any) -> int:
    """Return the characters of a text, or of the JSON of anything else."""
    if value is None:
        return 0
    return len(value if isinstance(value, str) else msgspec.json.encode(value).decode())


def _first_rows(hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return for each row the index of the first row with the same hash."""
    _, first, group = np.unique(hashes, return_index=True, return_inverse=True)
    return np.asarray(first[group], np.int64)


def _repetitions(is_repeated: NDArray[np.bool_], first: NDArray[np.int64]) -> Repetitions:
    rows = np.flatnonzero(is_repeated)
    examples = [RepeatedRow(row=int(row), first=int(first[row])) for row in rows[:EXAMPLES]]
    return Repetitions(rows=len(rows), examples=examples)


def _lengths(characters: NDArray[np.int64]) -> TextLengths | None:
    """Describe lengths, of which -1 stands for a missing text. Return None if all are missing."""
    present = characters[characters >= 0]
    if not len(present):
        return None
    median, p95 = np.percentile(present, [50, 95], method="inverted_cdf")
    return TextLengths(
        rows=len(present),
        min=int(present.min()),
        median=int(median),
        p95=int(p95),
        max=int(present.max()),
        longest_row=int(characters.argmax()),
        mean=round(float(present.mean()), 1),
        buckets=_buckets(present),
    )


def _none() -> TextLengths:
    return TextLengths(rows=0, min=0, median=0, p95=0, max=0, longest_row=0, mean=0.0, buckets=[])


def _buckets(present: NDArray[np.int64]) -> list[LengthBucket]:
    """Count the lengths by their powers of two, without the empty buckets at both ends."""
    powers = np.frexp(present)[1]
    counts = np.bincount(powers)
    return [
        LengthBucket(
            start=0 if power == 0 else 1 << (power - 1),
            end=(1 << power) - 1,
            rows=int(counts[power]),
        )
        for power in range(int(powers.min()), len(counts))
    ]
