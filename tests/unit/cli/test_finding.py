"""RUN names a run, or else a chain."""

from typing import Any, cast

import pytest

from headrace.cli.client import Gateway, NotFound
from headrace.cli.output import CliError
from headrace.cli.runs import samples
from headrace.cli.runs.chains import find

RUN = {"id": "8a29aab3", "name": "sums", "state": "queued"}
CHAIN = {"id": "chain-d1544ce8", "name": "both", "state": "running"}


class Records:
    """A gateway that has these records by path."""

    def __init__(self, **records: dict[str, Any]) -> None:
        self._records = records

    def get(self, path: str) -> dict[str, Any]:
        kind, name = path.removeprefix("/v1/").split("/")
        record = self._records.get(kind)
        if record is None or name not in (record["id"], record["name"]):
            raise NotFound(f"there is no {path}")
        return record


def found(reference: str, **records: dict[str, Any]) -> tuple[str, str]:
    named = find(cast(Gateway, Records(**records)), reference)
    return named.kind, named.record["id"]


def test_a_name_that_a_run_and_a_chain_have_is_refused_with_their_ids() -> None:
    both = {**RUN, "name": "both"}
    with pytest.raises(CliError, match="8a29aab3 \\(queued\\), chain-d1544ce8 \\(running\\)"):
        found("both", runs=both, chains=CHAIN)
    assert found(both["id"], runs=both, chains=CHAIN) == ("run", "8a29aab3")
    assert found("both", runs=RUN, chains=CHAIN) == ("chain", "chain-d1544ce8")
    assert found("sums", runs=RUN, chains=CHAIN) == ("run", "8a29aab3")


def test_samples_of_a_name_that_a_run_and_a_chain_have_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records = Records(runs={**RUN, "name": "both"}, chains=CHAIN)
    monkeypatch.setattr(samples, "connect", lambda url: records)
    with pytest.raises(CliError, match="8a29aab3 \\(queued\\), chain-d1544ce8 \\(running\\)"):
        samples.samples("both")
