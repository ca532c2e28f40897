"""Deletes a chain that is over, with its runs."""

import shutil
from http import HTTPStatus

import anyio.to_thread

from services.contracts.chains import ChainRecord
from services.gateway.dependencies import Dependencies
from services.gateway.run_deletion import delete_run
from services.http import Problem


async def delete_chain(deps: Dependencies, chain: ChainRecord) -> None:
    """Delete a chain, its runs and all their files. Raises Problem 409 if it is not over or another
    run needs one of its runs: then the chain stays, with the runs that are not deleted yet."""
    if not chain.state.over:
        raise Problem(
            HTTPStatus.CONFLICT,
            f"chain {chain.name} ({chain.id}) is {chain.state}: cancel it, and delete it once it "
            "is over",
        )
    # The newest first: it may continue an older one.
    for id in [run for step in reversed(chain.steps) for run in reversed(step.runs)]:
        if (record := await deps.store.runs.get(id)) is not None:
            await delete_run(deps, record)
    await deps.store.chains.delete(chain.id)
    folder = deps.volume.path(f"chains/{chain.id}")
    await anyio.to_thread.run_sync(lambda: shutil.rmtree(folder, ignore_errors=True))
