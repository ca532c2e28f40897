"""Reads a run's rollouts for the API: pages of answers that fit a filter, whole groups, and a step
as one file.

Memory is bounded: one row group of a part is decoded at a time, and a text search stops after
SEARCH_SECONDS with the place to go on from. A damaged part is named, and hides no other part.
"""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from services.contracts.groups.rollout import (
    EXCERPT,
    RolloutGroup,
    RolloutSample,
    RolloutSummary,
    TokenBranch,
    TokenSpan,
)
from services.contracts.groups.sampled_answer import cut
from services.rollouts.index import newest_first
from services.rollouts.index_record import Records
from services.rollouts.parts import COLUMNS, part_name, parts_of
from services.rollouts.rollout_filter import RolloutFilter
from services.rollouts.token_texts import pieces, read_token_texts
from services.runtime.logs import get_logger
from services.volume import written_beside

log = get_logger(__name__)

SEARCH_SECONDS = 0.7
"""Seconds after which a page of a text search ends, even if it is not full."""
LISTED = [
    name
    for name in COLUMNS.names
    if name not in ("reasons", "worker", "generated_at", "branches")
    and (name == "versions" or not pa.types.is_list(COLUMNS.field(name).type))
]

Place = tuple[int, int, int]
"""Step, group and sample of an answer: a page goes on after it."""


@dataclass
class Damage:
    """The parts that a request could not read."""

    files: list[str] = field(default_factory=list)

    def report(self, path: Path, error: Exception) -> None:
        if path.name not in self.files:
            self.files.append(path.name)
            log.warning(
                "a part of rollouts cannot be read", file=str(path), reason=str(error)[:200]
            )


@dataclass(frozen=True)
class RolloutPage:
    rollouts: list[RolloutSummary]
    next: Place | None
    """Where older answers begin; None: there are no more."""
    damaged: list[str]


def page(
    folder: Path, wanted: RolloutFilter, text: str | None, limit: int, after: Place | None = None
) -> RolloutPage:
    """Return up to `limit` answers that fit, the newest steps first, after the answer at `after`.
    `text`: words of the completion, in any case."""
    damage, deadline = Damage(), time.monotonic() + SEARCH_SECONDS
    chosen: list[Records] = []
    count, following = 0, None
    for step, of_step in newest_first(folder, wanted, after[0] if after else None):
        records = _after(of_step, after) if after and step == after[0] else of_step
        if not len(records):
            continue
        if count == limit:
            following = place_of(chosen[-1][-1])
            break
        last = place_of(records[-1])
        if text:
            records = _containing(folder, records, text, damage)
        fits = records[: limit - count]
        chosen.append(fits)
        count += len(fits)
        if len(fits) < len(records):
            following = place_of(fits[-1])
            break
        if text and time.monotonic() > deadline:
            following = last
            break
    rows = chain.from_iterable(rows_of(folder, records, LISTED, damage) for records in chosen)
    return RolloutPage([_summary(row, text) for row in rows], following, damage.files)


def group(folder: Path, run: str, step: int, number: int) -> RolloutGroup | None:
    """Return a whole group, or None if it is not kept. If none of its parts can be read, it has no
    samples."""
    damage = Damage()
    wanted = RolloutFilter(step=step, group=number)
    records = next((of_step for _, of_step in newest_first(folder, wanted)), None)
    if records is None:
        return None
    rows = sorted(rows_of(folder, records, COLUMNS.names, damage), key=lambda row: row["sample"])
    texts = read_token_texts(folder)
    first: dict[str, Any] = rows[0] if rows else {"row": int(records["row"][0])}
    ids: list[int] = first.get("prompt_token_ids", [])
    return RolloutGroup(
        run=run,
        step=step,
        group=number,
        row=first["row"],
        dataset=first.get("dataset", ""),
        own=first.get("own"),
        reference=first.get("reference", ""),
        prompt=first.get("prompt", ""),
        prompt_tokens=pieces(ids, texts),
        prompt_token_ids=ids,
        worker=first.get("worker", ""),
        generated_at=first.get("generated_at", 0.0),
        samples=[_sample(row, texts) for row in rows],
        damaged=damage.files,
    )


def joined(folder: Path, step: int, target: Path) -> bool:
    """Write all answers of a step to `target` as one Parquet file. Return False if no part can be
    read."""
    damage, some = Damage(), False
    with (
        written_beside(target) as beside,
        pq.ParquetWriter(beside, COLUMNS, compression="zstd") as out,
    ):
        for path in parts_of(folder, step):
            try:
                with pq.ParquetFile(path, page_checksum_verification=True) as part:
                    for number in range(part.num_row_groups):
                        out.write_table(part.read_row_group(number).cast(COLUMNS))
                        some = True
            except (OSError, ValueError, KeyError) as error:
                damage.report(path, error)
    return some


def place_of(record: np.void) -> Place:
    return int(record["step"]), int(record["group"]), int(record["sample"])


def _after(records: Records, place: Place) -> Records:
    """Return the records of one step that come after `place`."""
    _, group, sample = place
    later = (records["group"] == group) & (records["sample"] > sample)
    following: Records = records[later | (records["group"] > group)]
    return following


def _containing(folder: Path, records: Records, text: str, damage: Damage) -> Records:
    """Return the records of one step whose completions contain `text`."""
    kept = np.zeros(len(records), np.bool_)
    for rank in np.unique(records["rank"]):
        of_rank = np.flatnonzero(records["rank"] == rank)
        path = folder / part_name(int(records["step"][0]), int(rank))
        try:
            with pq.ParquetFile(path) as part:
                matches = np.concatenate([*_matches(part, text)])
            kept[of_rank] = matches[records["place"][of_rank]]
        except (OSError, ValueError, KeyError, IndexError) as error:
            damage.report(path, error)
    return records[kept]


def _matches(part: pq.ParquetFile, text: str) -> Iterator[npt.NDArray[np.bool_]]:
    """Yield, for each row group, which of its completions contain `text`."""
    for number in range(part.num_row_groups):
        column = part.read_row_group(number, ["completion"], use_threads=False).column(0)
        yield pc.match_substring(column, text, ignore_case=True).to_numpy()


def rows_of(
    folder: Path, records: Records, columns: Sequence[str], damage: Damage
) -> list[dict[str, Any]]:
    """Return the rows of records of one step, in their order. A row that cannot be read is left
    out, and its part reported."""
    rows: dict[Place, dict[str, Any]] = {}
    for rank in np.unique(records["rank"]):
        of_rank = records[records["rank"] == rank]
        path = folder / part_name(int(records["step"][0]), int(rank))
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as part:
                for record, row in _rows_at(part, of_rank, columns):
                    rows[place_of(record)] = row
        except (OSError, ValueError, KeyError, IndexError) as error:
            damage.report(path, error)
    return [rows[place] for place in map(place_of, records) if place in rows]


def _rows_at(
    part: pq.ParquetFile, records: Records, columns: Sequence[str]
) -> Iterator[tuple[np.void, dict[str, Any]]]:
    """Yield the rows of a part at the records' places, decoding one row group at a time."""
    start = 0
    for number in range(part.num_row_groups):
        end = start + part.metadata.row_group(number).num_rows
        inside = records[(records["place"] >= start) & (records["place"] < end)]
        if len(inside):
            table = part.read_row_group(number, list(columns), use_threads=False)
            rows = table.take(pa.array(inside["place"].astype(np.int64) - start)).to_pylist()
            for record, row in zip(inside, rows, strict=True):
                if (row["group"], row["sample"]) != (record["group"], record["sample"]):
                    raise ValueError("its rows are not those of the index")
                row["components"] = json.loads(row["components"])
                yield record, row
        start = end
    if len(records) and int(records["place"].max()) >= start:
        raise ValueError(f"it has {start} rows, and the index names more")


def _summary(row: dict[str, Any], text: str | None) -> RolloutSummary:
    shared = {name: row[name] for name in RolloutSummary.model_fields if name in row}
    return RolloutSummary(
        **shared
        | {
            "versions": sorted({span["version"] for span in row["versions"]} - {None}),
            "prompt": cut(row["prompt"], EXCERPT),
            "completion": excerpt(row["completion"], text),
        }
    )


def excerpt(text: str, around: str | None) -> str:
    """Return `text`, or about EXCERPT characters from it: around `around`, or from its
    beginning and its end."""
    place = text.lower().find(around.lower()) if around else -1
    if len(text) <= EXCERPT or not around or place < 0:
        return cut(text, EXCERPT)
    start = max(place - (EXCERPT - min(len(around), EXCERPT)) // 2, 0)
    end = start + EXCERPT
    return "…" * (start > 0) + text[start:end] + "…" * (end < len(text))


def _sample(row: dict[str, Any], texts: pa.BinaryArray | None) -> RolloutSample:
    shared = {name: row[name] for name in RolloutSample.model_fields if name in row}
    return RolloutSample.model_construct(
        **shared
        | {
            "reasons": json.loads(row["reasons"]),
            "tokens": pieces(row["token_ids"], texts),
            "versions": [TokenSpan(**span) for span in row["versions"]],
            "branches": [TokenBranch(**branch) for branch in row["branches"]],
        }
    )
