"""Parquet parts of rollouts: one row an answer. Each rank of the learner writes one part a step."""

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

SPAN = pa.struct([("start", pa.int32()), ("end", pa.int32()), ("version", pa.int32())])
BRANCH = pa.struct([("start", pa.int32()), ("after", pa.int32())])
COLUMNS = pa.schema(
    [
        ("step", pa.int32()),
        ("group", pa.int64()),
        ("sample", pa.int32()),
        ("row", pa.int64()),
        ("dataset", pa.string()),
        ("own", pa.string()),
        ("reference", pa.string()),
        ("prompt", pa.string()),
        ("completion", pa.string()),
        ("reward", pa.float64()),
        ("components", pa.string()),  # JSON
        ("reasons", pa.string()),  # JSON
        ("advantage", pa.float64()),
        ("status", pa.string()),
        ("finish_reason", pa.string()),
        ("trained", pa.bool_()),
        ("length", pa.int32()),
        ("turns", pa.int32()),
        ("worker", pa.string()),
        ("generated_at", pa.float64()),
        ("prompt_token_ids", pa.list_(pa.int32())),
        ("token_ids", pa.list_(pa.int32())),
        ("sampler_logprobs", pa.list_(pa.float32())),
        ("learner_logprobs", pa.list_(pa.float32())),
        ("entropy", pa.list_(pa.float32())),
        ("advantages", pa.list_(pa.float32())),
        ("versions", pa.list_(SPAN)),
        ("branches", pa.list_(BRANCH)),
    ]
)
FLOATS = ("sampler_logprobs", "learner_logprobs", "entropy", "advantages")
"""Columns of float32 lists, with an entry for each token of the completion."""
SHORT = ("dataset", "own", "reference", "prompt", "status", "finish_reason", "worker")
"""Columns whose values repeat within a group."""
GROUP_TOKENS = 1 << 17
"""Tokens of a row group, about: what is decoded to show one answer."""
_NAME = re.compile(r"part-(\d{8,10})-rank-(\d{4,5})\.parquet")


def part_name(step: int, rank: int) -> str:
    """Return the file name of the part that `rank` writes for `step`."""
    return f"part-{step:08d}-rank-{rank:04d}.parquet"


def parts_of(folder: Path, step: int) -> list[Path]:
    """Return the parts of a step, by rank."""
    return sorted(folder.glob(f"part-{step:08d}-rank-*.parquet"))


def step_of(path: Path) -> int | None:
    """Return the step of a part, or None for another file."""
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else None


def lists(arrays: Sequence[npt.NDArray[np.generic] | None], type: pa.DataType) -> pa.Array:
    """Return the Arrow lists of `arrays`, without a Python object a number. NaN becomes null, and
    so does a missing array."""
    present = [np.empty(0) if array is None else array for array in arrays]
    ends = np.cumsum([0, *map(len, present)]).astype(np.int32)
    flat = np.concatenate(present) if present else np.empty(0)
    values = pa.array(flat, type.value_type, from_pandas=True)
    missing = pa.array([array is None for array in arrays], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(ends), values, type=type, mask=missing)


def rounded(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Round to 16 significant bits, a relative error of at most 8e-6. The rest of a float32 is
    noise that does not compress: a quarter of a part's bytes."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + np.uint32(0x80)) & np.uint32(0xFFFFFF00)).view(np.float32)


def write(path: Path, table: pa.Table, lengths: Sequence[int]) -> None:
    """Write a part to `path`. `lengths`: tokens of each row, by which row groups are cut."""
    floats = [f"{name}.list.element" for name in FLOATS]
    options = {
        "compression": "zstd",
        "use_dictionary": list(SHORT),
        "use_byte_stream_split": floats,
        "write_page_checksum": True,
    }
    with pq.ParquetWriter(path, COLUMNS, **options) as writer:
        for start, end in pairwise(row_group_ends(lengths)):
            writer.write_table(table.slice(start, end - start), row_group_size=end - start)


def row_group_ends(lengths: Sequence[int]) -> list[int]:
    """Cut rows with these lengths into row groups with about GROUP_TOKENS. Returns 0 and the end of
    each row group."""
    ends, tokens = [0], 0
    for place, length in enumerate(lengths):
        if tokens and tokens + length > GROUP_TOKENS:
            ends.append(place)
            tokens = 0
        tokens += length
    return [*ends, len(lengths)] if lengths else ends
