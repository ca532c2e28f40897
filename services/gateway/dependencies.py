"""Dependencies of routes: the store, the data volume, and the run or dataset of a request."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, TypeVar

import httpx
from fastapi import Depends, Path, Request

from headrace.config_keys import dataset_names
from headrace.nearest import nearest
from services.contracts.chains import ChainRecord
from services.contracts.records import DatasetRecord, RunRecord, RunSummary
from services.gateway.authentication import Keyring
from services.gateway.callers import Caller
from services.gateway.dataset_findings import RowCounting
from services.gateway.event_followers import Followers
from services.gateway.idempotency import RequestTry
from services.gateway.live_stream import LiveStream
from services.gateway.policy.limits import OpenCalls
from services.gateway.previews import Previews
from services.gateway.reference_checks import ReferenceChecks
from services.gateway.reports import Reports
from services.gateway.run_details import RunDetails
from services.gateway.run_file_retention import Sizes
from services.gateway.run_index import RunIndex
from services.gateway.run_names import meant_id
from services.gateway.sessions.dataset_rows import DatasetRows
from services.gateway.sessions.responses import Responses
from services.gateway.sessions.turn_requests import Turns
from services.gateway.settings import GatewaySettings
from services.gateway.tracking import TrackerCarriers
from services.http import Bandwidth, Problem
from services.payloads import Payloads
from services.series import RunSeries
from services.store import Store
from services.volume import Volume

T = TypeVar("T")
FILES = (".jsonl", ".json", ".csv", ".parquet", ".tar")
"""How names of files end that hold datasets."""


@dataclass
class Dependencies:
    """The objects that all routes of one application share."""

    settings: GatewaySettings
    store: Store
    volume: Volume
    http: httpx.AsyncClient
    keyring: Keyring
    sizes: Sizes
    index: RunIndex
    details: RunDetails
    followers: Followers
    stream: LiveStream
    bandwidth: Bandwidth
    reports: Reports
    turns: Turns
    responses: Responses
    payloads: Payloads
    policy: OpenCalls
    rows: DatasetRows
    references: ReferenceChecks
    previews: Previews
    counting: RowCounting
    series: RunSeries
    tracking: TrackerCarriers


# Without `async`, FastAPI would ask a thread for it, at each request.
async def _dependencies(request: Request) -> Dependencies:
    deps: Dependencies = request.app.state.deps
    return deps


Deps = Annotated[Dependencies, Depends(_dependencies)]


async def _caller(request: Request) -> Caller:
    return Caller.of(request.scope)


async def _request_try(request: Request) -> RequestTry:
    return RequestTry.of(request.scope)


RequestTryDep = Annotated[RequestTry, Depends(_request_try)]
CallerDep = Annotated[Caller, Depends(_caller)]


async def find_run(deps: Dependencies, reference: str) -> RunRecord:
    """Return the run with this id, or the only run with this name, or the only run whose id begins
    so. A run that a run of the same name continues does not count. Raises Problem 404, or 409 with
    the ids of several runs."""
    return await _meant("run", reference, deps.store.runs.get, deps.index.all)


async def find_chain(deps: Dependencies, reference: str) -> ChainRecord:
    """Return the chain with this id, or the only chain with this name, or the only chain whose id
    begins so. Raises Problem 404, or 409 with the ids of several chains."""
    return await _meant("chain", reference, deps.store.chains.get, deps.store.chains.all)


async def _meant(
    kind: str,
    reference: str,
    get: Callable[[str], Awaitable[T | None]],
    every: Callable[[], Awaitable[Sequence[RunSummary | ChainRecord]]],
) -> T:
    """Return the record that `reference` means. `kind` is its word in an error: `run`, `chain`."""
    record = await get(reference)
    if record is None:
        record = await get(meant_id(kind, reference, await every()))
    if record is None:
        raise Problem(HTTPStatus.NOT_FOUND, f"there is no {kind} {reference!r} any more")
    return record


async def open_chains(deps: Dependencies) -> list[ChainRecord]:
    """Return all chains that are not over."""
    chains = [await deps.store.chains.get(id) for id in await deps.store.chains.open()]
    return [chain for chain in chains if chain is not None and not chain.state.over]


async def find_dataset(deps: Dependencies, reference: str) -> DatasetRecord:
    """Return the dataset with this id or name. Raises Problem 404, which names the nearest
    dataset."""
    record = await deps.store.datasets.find(reference)
    if record is not None:
        return record
    records = await deps.store.datasets.list()
    raise Problem(HTTPStatus.NOT_FOUND, missing_dataset(reference, records))


def missing_dataset(reference: str, records: list[DatasetRecord]) -> str:
    """Return the sentence about a dataset that does not exist."""
    names = sorted(record.name for record in records)
    if "/" in reference or reference.endswith(FILES):
        return (
            f"there is no dataset {reference!r}: upload a file first (`headrace datasets add FILE`)"
        )
    if near := nearest(reference, names):
        return f"there is no dataset {reference!r}; did you mean {near!r}?"
    return f"there is no dataset {reference!r}; {listed_datasets(records)}"


def listed_datasets(records: list[DatasetRecord]) -> str:
    """Return the names of the first ten datasets, as a clause."""
    names = sorted(record.name for record in records)
    more = f" and {len(names) - 10:,} more" if len(names) > 10 else ""
    return f"there is {', '.join(names[:10])}{more}" if names else "none has been uploaded yet"


Reference = Annotated[
    str, Path(description="Its id, the beginning of its id, or a name that no other has.")
]


async def _run(deps: Deps, run: Reference) -> RunRecord:
    return await find_run(deps, run)


async def _chain(deps: Deps, chain: Reference) -> ChainRecord:
    return await find_chain(deps, chain)


async def _dataset(
    deps: Deps, dataset: Annotated[str, Path(description="Its name or id.")]
) -> DatasetRecord:
    return await find_dataset(deps, dataset)


RUN_PROBLEMS: dict[int | str, str] = {
    404: "There is no such run; `detail` names the nearest",
    409: "Several runs have this name, or an id that begins so; `detail` lists them",
}
DATASET_PROBLEMS: dict[int | str, str] = {
    404: "There is no such dataset; `detail` names the nearest"
}
CHAIN_PROBLEMS: dict[int | str, str] = {
    404: "There is no such chain; `detail` names the nearest",
    409: "Several chains have this name, or an id that begins so; `detail` lists them",
}

ChainDep = Annotated[ChainRecord, Depends(_chain)]
RunDep = Annotated[RunRecord, Depends(_run)]
DatasetDep = Annotated[DatasetRecord, Depends(_dataset)]


async def users_of(deps: Dependencies, record: DatasetRecord) -> list[str]:
    """List the unfinished runs and chains that read `record` for training or evaluation."""
    names = {record.id, record.name}
    live = await deps.store.runs.live()
    runs = [run for run in live if names & {*dataset_names(run.config).values()}]
    chains = [
        chain
        for chain in await open_chains(deps)
        if any(names & {*dataset_names(step.config).values()} for step in chain.steps[chain.at :])
    ]
    return [
        *(f"{run.name} ({run.id}, {run.state})" for run in runs),
        *(f"{chain.name} ({chain.id}, {chain.state})" for chain in chains),
    ]
