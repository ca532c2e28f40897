"""What a request gets from its application: the store, the data volume, the run it names."""

from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any

import httpx
from fastapi import Depends, Path, Request
from rapidfuzz import fuzz, process

from services.contracts.records import DatasetRecord, RunRecord, several_called
from services.gateway.guard import Keyring
from services.gateway.settings import GatewaySettings
from services.http import Problem
from services.store import Store
from services.volume import Volume


@dataclass
class Access:
    """One per application, made at start."""

    settings: GatewaySettings
    store: Store
    volume: Volume
    http: httpx.AsyncClient
    keyring: Keyring | None
    """None where no key is asked for."""


def access(request: Request) -> Access:
    """This application's access."""
    given: Access = request.app.state.access
    return given


AccessDep = Annotated[Access, Depends(access)]


async def find_run(given: Access, reference: str) -> RunRecord:
    """The run with this id, this name (the newest of several), or the only one whose id begins
    so. Raises Problem 404, or 409 where several ids do."""
    exact = await given.store.runs.get(reference)
    if exact is not None:
        return exact
    runs = sorted(await given.store.runs.list(), key=lambda run: run.created, reverse=True)
    if named := [run for run in runs if run.name == reference]:
        return named[0]
    begins = [run for run in runs if reference and run.id.startswith(reference)]
    if len(begins) == 1:
        return begins[0]
    if begins:
        ids = ", ".join(run.id for run in begins[:5])
        raise Problem(
            HTTPStatus.CONFLICT, f"{reference!r} is the beginning of several runs' ids: {ids}"
        )
    near = process.extractOne(
        reference, sorted({run.name for run in runs}), scorer=fuzz.ratio, score_cutoff=60
    )
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise Problem(HTTPStatus.NOT_FOUND, f"there is no run {reference!r}{hint}")


async def find_dataset(given: Access, reference: str) -> DatasetRecord:
    """The dataset with this id or name. Raises Problem 404 naming the nearest."""
    found = await given.store.datasets.find(reference)
    if found is not None:
        return found
    records = await given.store.datasets.list()
    raise Problem(HTTPStatus.NOT_FOUND, missing_dataset(reference, records))


def missing_dataset(reference: str, records: list[DatasetRecord]) -> str:
    """The sentence for a dataset that is not there."""
    names = sorted(record.name for record in records)
    near = process.extractOne(reference, names, scorer=fuzz.ratio, score_cutoff=60)
    if near:
        return f"there is no dataset {reference!r}; did you mean {near[0]!r}?"
    listed = f"there is {', '.join(names[:10])}" if names else "none has been uploaded yet"
    return f"there is no dataset {reference!r}; {listed}"


async def _run(
    given: AccessDep,
    run: Annotated[
        str, Path(description="Its id, the beginning of its id, or its name (then the newest).")
    ],
) -> RunRecord:
    return await find_run(given, run)


async def _only_run(
    given: AccessDep,
    run: Annotated[
        str, Path(description="Its id, the beginning of its id, or a name that no other has.")
    ],
) -> RunRecord:
    """For what cannot be undone, and may be asked for twice."""
    record = await find_run(given, run)
    runs = [(one.id, one.name) for one in await given.store.runs.list()]
    if problem := several_called(run, record.id, runs):
        raise Problem(HTTPStatus.CONFLICT, problem)
    return record


async def _dataset(
    given: AccessDep, dataset: Annotated[str, Path(description="Its name or id.")]
) -> DatasetRecord:
    return await find_dataset(given, dataset)


RUN_PROBLEMS: dict[int | str, str] = {
    404: "There is no such run; `detail` names the nearest",
    409: "The beginning of an id that several runs have",
}
DATASET_PROBLEMS: dict[int | str, str] = {
    404: "There is no such dataset; `detail` names the nearest"
}

RunDep = Annotated[RunRecord, Depends(_run)]
OnlyRunDep = Annotated[RunRecord, Depends(_only_run)]
DatasetDep = Annotated[DatasetRecord, Depends(_dataset)]


async def runs_that_use(given: Access, record: DatasetRecord) -> list[RunRecord]:
    """Runs that are not over and read `record`, for training or evaluation."""
    names = {record.id, record.name}
    return [
        run
        for run in await given.store.runs.list()
        if not run.state.final and names.intersection(datasets_of(run.config))
    ]


def datasets_of(config: dict[str, Any]) -> Iterator[str]:
    """The datasets that a run's config names."""
    for part in ("data", "evaluation"):
        section = config.get(part) or {}
        yield from filter(None, [section.get("dataset"), *section.get("mix", [])])
