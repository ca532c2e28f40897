"""Find the run or chain that a name, an id or the beginning of an id means.

Pure. `dependencies.find_run` and `find_chain` ask here if no record has the id.
"""

import time
from collections.abc import Sequence
from http import HTTPStatus

from headrace.nearest import nearest
from services.contracts.chains import ChainRecord
from services.contracts.records import RunSummary
from services.http import Problem

LISTED = 5
"""Records of one name that an error lists."""


def meant_id(kind: str, reference: str, records: Sequence[RunSummary | ChainRecord]) -> str:
    """Return the id of the only record (newest first) with this name, or else of the only record
    whose id begins so. Raises Problem 404, or 409 with the ids of several records."""
    named = [record for record in records if record.name == reference]
    begins = [record for record in records if reference and record.id.startswith(reference)]
    # A resumed run keeps the name, and answers to it. A fork is a run of its own.
    continued = {
        record.resume_from
        for record in named
        if isinstance(record, RunSummary) and not record.is_fork
    }
    meant = [record for record in named if record.id not in continued] or begins
    if len(meant) == 1:
        return meant[0].id
    if meant:
        what = f"{kind}s are called" if named else f"{kind}s have ids that begin with"
        raise Problem(
            HTTPStatus.CONFLICT,
            f"{len(meant):,} {what} {reference!r}: name one by its id: {_listed(meant)}",
        )
    near = nearest(reference, sorted({record.name for record in records}))
    hint = f"did you mean {near!r}?" if near else f"`headrace {kind}s` and GET /v1/{kind}s list all"
    raise Problem(HTTPStatus.NOT_FOUND, f"there is no {kind} {reference!r}; {hint}")


def _listed(records: Sequence[RunSummary | ChainRecord]) -> str:
    """List the first few records, with the facts that tell them apart."""
    first = records[:LISTED]
    times = [
        time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(record.created)) for record in first
    ]
    shown = [f"{record.id} ({record.state}, {at})" for record, at in zip(first, times, strict=True)]
    more = len(records) - len(shown)
    return ", ".join(shown) + (f", and {more:,} older" if more else "")
