"""From uploaded files to a dataset with a record."""

import shutil
import time
from dataclasses import dataclass, replace
from http import HTTPStatus

import anyio
import anyio.to_thread
from fastapi import Request
from pydantic import Field

from services.contracts.config.rewards import RewardComponent
from services.contracts.records import DatasetRecord
from services.datasets import (
    ColumnMapping,
    Format,
    Imported,
    KnownFile,
    SourceFile,
    import_in_child,
    known_file,
)
from services.datasets.hub_files import KNOWN, HubReference, as_dataset_name
from services.datasets.shards import stem_of_shard
from services.gateway.dependencies import Dependencies
from services.gateway.submission.hub_datasets import fetch_split
from services.gateway.submission.verifier_check import check_upload
from services.http import Problem, while_connected
from services.recovery.record_copies import keep_copy, keep_dataset
from services.runtime.logs import get_logger

IMPORTS = anyio.CapacityLimiter(2)
"""Uploads that are converted at once; each may take much memory."""
QUOTA = 4
"""How many times the largest upload the rows of one upload may take."""

log = get_logger(__name__)


class Uploaded(DatasetRecord):
    """A dataset, and how its file was read."""

    mapping: ColumnMapping | str = Field(
        description="The columns that were used, guesses made; or the name of the mapping."
    )
    left_over: list[str] = Field(
        description="Columns that are in neither prompt nor answer. Rows keep them for verifiers."
    )
    duplicates: int = Field(description="Rows with the prompt and answer of an earlier row.")
    added: bool = Field(description="False: a dataset of this name had these rows already.")
    notes: list[str] = Field(description="Guesses about how the files were read.")
    warnings: list[str] = Field(description="Probable mistakes, each with a count.")
    left_out: int = Field(
        0, description="Bad rows that `bad_rows=skip` left out. A warning names the first."
    )


@dataclass(frozen=True)
class DatasetSource:
    """How files become a dataset."""

    name: str | None
    """None: named after the first file."""
    format: Format | None
    """None: guessed."""
    mapping: ColumnMapping | KnownFile
    verifier: str | None
    """Reads all references at once."""
    source: str | None
    """Where the rows come from. None: the names of the files."""
    skips_bad_rows: bool = False


async def create_dataset(
    deps: Dependencies, client: Request | None, files: list[SourceFile], asked: DatasetSource
) -> Uploaded | None:
    """Convert files into a dataset. Return None if the client has left: nothing is made then. With
    `client` None it cannot leave. Raises DatasetError, OSError, and Problem 409."""
    chosen = asked.name or _name_from([part.name for part in files])
    quota = QUOTA * deps.settings.upload_limit

    async def convert() -> Imported:
        async with IMPORTS:
            return await import_in_child(
                deps.volume.root,
                files,
                chosen,
                asked.format,
                asked.mapping,
                quota,
                skips_bad_rows=asked.skips_bad_rows,
            )

    while True:
        work = convert()
        imported = await (work if client is None else while_connected(client, work))
        if imported is None:
            return None
        record = DatasetRecord(
            id=imported.id,
            name=chosen,
            rows=imported.segment.rows,
            created=time.time(),
            segments=[imported.segment],
            source=asked.source or _source(files),
            defaults=asked.mapping.defaults if isinstance(asked.mapping, KnownFile) else None,
        )
        if (kept := await _added(deps, record)) is not None:
            break
    if kept.created == record.created:
        log.info("dataset added", dataset=record.id, name=chosen, rows=record.rows)
        deps.counting.begin(kept)
    rewards = [RewardComponent(verifier=asked.verifier)] if asked.verifier else []
    rewards += kept.defaults.rewards if kept.defaults else []
    unread = await check_upload(deps, kept, rewards)
    if rewards and not unread:
        names = " and ".join(dict.fromkeys(repr(reward.verifier) for reward in rewards))
        imported.notes.append(f"all references can be read by verifier {names}")
    return Uploaded(
        **kept.model_dump(),
        mapping=imported.mapping,
        left_over=imported.left_over,
        duplicates=imported.duplicates,
        added=kept.created == record.created,
        notes=imported.notes,
        warnings=imported.warnings + unread,
        left_out=imported.left_out,
    )


async def _added(deps: Dependencies, record: DatasetRecord) -> DatasetRecord | None:
    """Return the record that holds the name now, or None if the same dataset was deleted since the
    file was written. Raises Problem 409 if the record has other rows or other defaults."""
    async with deps.volume.dataset_lock():
        path = deps.volume.path(record.segments[0].file)
        if not await anyio.to_thread.run_sync(path.exists):
            return None
        kept = await deps.store.datasets.add(record)
        if kept.damage:
            raise Problem(
                HTTPStatus.CONFLICT,
                f"{kept.damage}: delete it first (`headrace datasets rm {kept.id}`)",
            )
        if kept.id != record.id:
            await anyio.to_thread.run_sync(remove_files, deps, record.id)
            raise Problem(
                HTTPStatus.CONFLICT,
                f"there is a dataset {record.name!r} with other rows (id {kept.id}): choose "
                f"another name, delete it first (`headrace datasets rm {record.name}`), or append "
                "to it with POST /v1/prompts",
            )
        if kept.defaults != record.defaults:
            raise Problem(
                HTTPStatus.CONFLICT,
                f"dataset {kept.name!r} has these rows already, {_way(kept)}, and this upload "
                f"comes {_way(record)}: delete it first "
                f"(`headrace datasets rm {kept.name}`), or choose another name",
            )
        await keep_copy(keep_dataset, deps.volume.root, kept)
        return kept


def remove_files(deps: Dependencies, dataset: str) -> None:
    """Delete the files of a dataset."""
    shutil.rmtree(deps.volume.path(f"datasets/{dataset}"), ignore_errors=True)


def _way(record: DatasetRecord) -> str:
    """Describe how the rows are asked and scored, for a refusal that tells two ways apart."""
    if record.defaults is None:
        return "without a template and a verifier of its own"
    verifiers = " and ".join(repr(reward.verifier) for reward in record.defaults.rewards)
    return f"with the template {record.defaults.template!r} and the verifier {verifiers}"


def _source(files: list[SourceFile]) -> str:
    """Describe the uploaded files: the name of the first, and the number of the others."""
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return f"{files[0].name[:150]}{more}"


def _name_from(filenames: list[str]) -> str:
    """Return the first file's name without its suffix. The names of several files lose their
    numbers."""
    stem = stem_of_shard(filenames[0]) if len(filenames) > 1 else filenames[0]
    return as_dataset_name(stem.split(".")[0])


async def create_from_hub(
    deps: Dependencies,
    client: Request | None,
    reference: HubReference,
    asked: DatasetSource,
) -> Uploaded | None:
    """Fetch a split of the hub's dataset, and make a dataset of it as `create_dataset` does. Raises
    Problem 424 if the hub is away, and as `create_dataset`."""
    name = asked.name or reference.dataset_name
    notes: list[str] = []
    if asked.mapping == ColumnMapping() and (known := KNOWN.get(reference.name)):
        asked = replace(asked, mapping=known_file(known))
        notes.append(
            f"{reference.name} is read as {known}, with its template and verifier; name columns to "
            "read it without them"
        )
    work = fetch_split(deps, reference)
    fetched = await (work if client is None else while_connected(client, work))
    if fetched is None:
        return None
    source, files, about_files = fetched
    try:
        asked = replace(asked, name=name, source=asked.source or source[:200])
        made = await create_dataset(deps, client, files, asked)
    finally:
        for each in files:
            each.file.close()
    if made is not None:
        made.notes = [f"fetched {source}", *about_files, *notes, *made.notes]
    return made
