"""Rows of a run's dataset as its model will read them.

A child process renders them: a tokenizer and a chat template come with a model, and may be hostile.
The child gets no keys, loads only plain files of a model, and has limits of time and memory. Only
one child works at a time. The newest results are kept, so that a sweep renders its row once.
"""

import asyncio
import json
import os
import signal
import sys
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import anyio.to_thread
import xxhash

from services.caches import NO_CACHES
from services.contracts.config import RLConfig, SFTConfig
from services.contracts.config.episodes import Sessions, Tools
from services.contracts.config.model import ScratchModel
from services.contracts.preview import (
    AskedRow,
    CountedRows,
    PreviewJob,
    RenderedPiece,
    RenderedRow,
    Rendering,
    shortened,
)
from services.contracts.records import DatasetRecord
from services.contracts.rows.dataset import Row
from services.contracts.rows.rendering import compose
from services.contracts.rows.template_limits import HARD_SECONDS
from services.datasets import DatasetReader
from services.runtime.children import signal_child
from services.runtime.logs import get_logger
from services.volume import Volume

log = get_logger(__name__)

MOST_SECONDS = 20.0
"""For one child process. It takes a second."""
KEPT = 64
"""Results that are remembered."""
ENVIRONMENT = (
    *("PATH", "HOME", "LANG", "LC_ALL", "PYTHONPATH", "PYTHONSAFEPATH", "TMPDIR"),
    *NO_CACHES,
)
"""Variables that the child gets. The others may hold keys."""
LARGE_FILE = 64 << 20
"""Bytes. No larger tokenizer is accepted."""
ROW_CHARACTERS = 4000
REFERENCE_CHARACTERS = 500
NOT_RENDERED = "what the chat template adds is not shown, and tokens are not counted"
MADE_LATER = (
    "the model is made when the run begins, and its tokenizer with it: tokens are not counted here"
)
NOT_HERE = f"the model is not on the gateway's host: {NOT_RENDERED}"
NO_ROWS = "applications bring the prompts: there is no dataset"
AGENTS = "agents write the prompts: this is what they get of a row"
TOOLS = "the model also reads the descriptions of its tools, which workers know"


class Shown(NamedTuple):
    """The rows of a request, and the characters shown of each."""

    indices: list[int]
    characters: int = ROW_CHARACTERS


class Previews:
    """Renders rows in child processes."""

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._turn = asyncio.Lock()
        self._kept: OrderedDict[str, Rendering] = OrderedDict()

    async def of(
        self,
        config: RLConfig | SFTConfig,
        dataset: DatasetRecord | None,
        tokenizer: Path | None,
        shown: Shown,
        counted: Mapping[str, CountedRows] | None = None,
    ) -> Rendering:
        """Rows of `dataset`, the first one of the config. `tokenizer`: its folder; None: it is not
        here. `counted`: rows to count, which takes a tokenizer."""
        if dataset is None:
            return Rendering(note=NO_ROWS)
        reader = DatasetReader(self._volume, dataset)
        rows = await anyio.to_thread.run_sync(reader.rows, shown.indices)
        by_index = dict(zip(shown.indices, rows, strict=True))
        rendering, lacking = None, NOT_HERE
        if isinstance(config.model, ScratchModel):
            lacking = MADE_LATER
        elif isinstance(config, RLConfig) and isinstance(config.rollout.episode, Sessions):
            lacking = AGENTS
        elif tokenizer is not None:
            asked = [
                AskedRow(index=at, prompt=row.prompt, answer=row.answer, columns=row.columns)
                for at, row in by_index.items()
            ]
            job = PreviewJob(
                config=config.model_dump(mode="json"),
                folder=str(tokenizer),
                rows=asked,
                characters=shown.characters,
                counted=dict(counted or {}),
            )
            rendering = await self._rendered(job)
            lacking = rendering.note or ""
        if rendering is None or not rendering.rows:
            plain = [
                _untokenized(config, at, row, shown.characters) for at, row in by_index.items()
            ]
            rendering = Rendering(rows=plain, note=lacking)
        elif isinstance(config, RLConfig) and isinstance(config.rollout.episode, Tools):
            rendering = rendering.model_copy(update={"note": TOOLS})
        referred = [
            row.model_copy(update={"reference": _reference(by_index[row.index])})
            for row in rendering.rows
        ]
        return rendering.model_copy(update={"rows": referred})

    async def _rendered(self, asked: PreviewJob) -> Rendering:
        job = asked.model_dump_json()
        # Rows read the same in each folder with the same files.
        model = {**asked.config["model"], "path": ""}
        read = [asked.config["type"], model, asked.config["data"], asked.config.get("objective")]
        files = await anyio.to_thread.run_sync(_contents, Path(asked.folder))
        state = [read, files, asked.model_dump(exclude={"config", "folder"})]
        key = xxhash.xxh3_128_hexdigest(json.dumps(state).encode())
        if (kept := self._kept.get(key)) is not None:
            return kept
        try:
            await asyncio.wait_for(self._turn.acquire(), MOST_SECONDS)
        except TimeoutError:
            return Rendering(note=f"too many rows are being rendered: {NOT_RENDERED}")
        try:
            # Another submission may have had the same row rendered meanwhile.
            rendering = self._kept.get(key) or await _child(job)
        finally:
            self._turn.release()
        # A failure may be over soon, and a message may name the folder.
        if not any(text in (rendering.note or "") for text in (NOT_RENDERED, asked.folder)):
            self._kept[key] = rendering
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return rendering


def _contents(folder: Path) -> list[tuple[str, str]]:
    """Identify a tokenizer's files by name and checksum. Large files, which hold weights, count by
    size and time."""
    with os.scandir(folder) as entries:
        files = sorted((entry.name, entry.stat()) for entry in entries if entry.is_file())
    return [
        (
            name,
            f"{stat.st_size} {stat.st_mtime_ns}"
            if stat.st_size > LARGE_FILE
            else xxhash.xxh3_64_hexdigest((folder / name).read_bytes()),
        )
        for name, stat in files
    ]


async def _child(job: str) -> Rendering:
    """Have a child process render a job. If it cannot, the answer has a note with the reason."""
    environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    try:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "learner.tools.preview"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"},
        )
    except OSError as error:
        return Rendering(note=f"no process can be started here ({error}): {NOT_RENDERED}")
    try:
        answer, errors = await asyncio.wait_for(child.communicate(job.encode()), MOST_SECONDS)
    except TimeoutError:
        return Rendering(note=f"rendering took more than {MOST_SECONDS:g} s: {NOT_RENDERED}")
    finally:
        signal_child(child, signal.SIGKILL)
        await child.wait()
    if child.returncode == -signal.SIGXCPU:
        return endless(PreviewJob.model_validate_json(job))
    return _answered(answer, errors.decode(errors="replace"))


def endless(job: PreviewJob) -> Rendering:
    """Refuse the rows of a child process that the kernel has ended for its CPU time."""
    problem = f"the chat template runs for more than {HARD_SECONDS} s and cannot be interrupted"
    return Rendering(rows=[RenderedRow(index=row.index, problem=problem) for row in job.rows])


def _answered(answer: bytes, errors: str) -> Rendering:
    """Return the answer of a child process, from its standard output and error."""
    try:
        return Rendering.model_validate_json(answer)
    except ValueError:
        last = (errors.strip().splitlines() or ["nothing"])[-1][:300]
        log.warning("rows not rendered", reason=last)
        if "No module named" in last:
            return Rendering(note=f"this gateway has no tokenizers (transformers): {NOT_RENDERED}")
        return Rendering(note=f"the rows could not be rendered here: {NOT_RENDERED}")


def _untokenized(
    config: RLConfig | SFTConfig, index: int, row: Row, characters: int
) -> RenderedRow:
    """Return a row as plain text without its middle beyond `characters`: without its tokenizer,
    nothing renders it."""
    asked = compose(row, config.data)
    text = asked if isinstance(asked, str) else "\n\n".join(map(_turn, asked))
    return RenderedRow(
        index=index, pieces=[RenderedPiece(text=shortened(text, characters), trained=False)]
    )


def _turn(message: dict[str, object]) -> str:
    content = message.get("content")
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return f"[{message.get('role')}] {text}"


def _reference(row: Row) -> str | None:
    if row.answer is None:
        return None
    text = row.answer if isinstance(row.answer, str) else json.dumps(row.answer, ensure_ascii=False)
    return shortened(text, REFERENCE_CHARACTERS)
