"""`/v1/runs/{run}/samples`: completions that were trained, with their rewards."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import anyio.to_thread
from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from services.contracts.sampled_answer import SampledAnswer
from services.gateway.dependencies import RUN_PROBLEMS, Deps, RunDep
from services.http import responses

router = APIRouter(prefix="/v1/runs", tags=["runs"])

BLOCK = 1 << 18
"""Bytes that are read at a time."""


class RunSamples(BaseModel):
    """Sampled answers of a run, newest first."""

    run: str = Field(description="The run's id.")
    samples: list[SampledAnswer] = Field(description="Up to four of each batch.")
    next: int | None = Field(
        description="Where older ones begin: `before` of the next request. Null: there are none."
    )


@router.get("/{run}/samples", summary="Sampled answers", responses=responses(RUN_PROBLEMS))
async def samples(
    deps: Deps,
    record: RunDep,
    step: Annotated[int | None, Query(ge=1, description="Only of this step.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="At most so many.")] = 20,
    before: Annotated[
        int | None, Query(ge=0, description="Only older ones: `next` of the answer before.")
    ] = None,
) -> RunSamples:
    """Some completions of each trained batch with their rewards, newest first: the best and the
    worst of one prompt, and others. They come from the learner's first rank."""
    path = deps.volume.path(f"runs/{record.id}/samples.jsonl")
    found, following = await anyio.to_thread.run_sync(_read, path, step, limit, before)
    return RunSamples(run=record.id, samples=found, next=following)


def _read(
    path: Path, step: int | None, limit: int, before: int | None
) -> tuple[list[SampledAnswer], int | None]:
    found: list[SampledAnswer] = []
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            for at, line in backwards(file, size if before is None else min(before, size)):
                row = json.loads(line, parse_constant=lambda _: None)
                # Later lines are of later steps.
                if step is not None and row["step"] < step:
                    break
                if step is None or row["step"] == step:
                    found.append(SampledAnswer.model_validate(row))
                    if len(found) == limit:
                        return found, at or None
    except FileNotFoundError:
        return [], None
    return found, None


def backwards(file: BinaryIO, end: int) -> Iterator[tuple[int, bytes]]:
    """(where it begins, line) of the whole lines before `end`, the last one first. What has no end
    yet is being written, or is no line's end where the caller made `end` up."""
    start, unread = end, b""
    while True:
        # The line that ends `unread` begins after the newline before it.
        begin = unread.rfind(b"\n", 0, max(len(unread) - 1, 0)) + 1
        if not begin and start:
            size = min(BLOCK, start)
            start -= size
            file.seek(start)
            unread = file.read(size) + unread
            continue
        line = unread[begin:]
        if line.endswith(b"\n"):
            yield start + begin, line
        if not begin:
            return
        unread = unread[:begin]
