"""Every run that ends gets a report; one that cannot be written stops nothing but itself."""

import json
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from services.contracts.records import RunSummary
from services.gateway.reports import Reports
from services.store import Store
from services.volume import Volume
from tests.integration.gateway.servers import GatewayProcess, InStore

pytestmark = pytest.mark.usefixtures("sums")


def test_a_run_that_ended_has_a_report_once_and_a_failed_report_is_a_warning_of_its_run(
    api: httpx.Client,
    submit: Any,
    in_store: InStore,
    gateway: GatewayProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended_before: set[str] = set()

    async def note(store: Store) -> None:
        ended_before.update([run.id for run in await store.runs.all()], await store.chains.ids())

    def new_reports(store: Store) -> Reports:
        """Reports of this test's runs: each report takes seconds."""
        reports = Reports(store, data)
        reports._settled |= ended_before
        return reports

    in_store(note)
    for left_over in api.get("/v1/runs?limit=1000&state=queued").json()["runs"]:
        api.post(f"/v1/runs/{left_over['id']}/cancel")
    early, reported, broken, empty, going = (submit().json()["id"] for _ in range(5))
    data = Volume(gateway.data)
    for run in (reported, broken, going):
        folder = data.path(f"runs/{run}")
        rows = [{"step": step, "reward/mean": step / 2} for step in (1, 2)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (data.path(f"runs/{broken}") / "report").write_text("no folder")
    for run in (early, reported, broken, empty):
        api.post(f"/v1/runs/{run}/cancel")
    page = data.path(f"runs/{reported}/report/report.html")
    times: list[float] = []

    async def look(store: Store) -> None:
        for _ in range(2):
            reports = new_reports(store)
            await reports._write_due()
            times.append(page.stat().st_mtime)

    in_store(look)
    read: list[float] = []

    async def look_twice(store: Store) -> None:
        reports = new_reports(store)
        await reports._write_due()
        summaries = store.runs.summaries

        async def counted(ids: Sequence[str]) -> Sequence[RunSummary | None]:
            listed = await summaries(ids)
            read.extend(run.created for run in listed if run is not None)
            return listed

        monkeypatch.setattr(store.runs, "summaries", counted)
        await reports._write_due()

    monkeypatch.setattr("services.gateway.reports.CLOCK_DIFFERENCE", 0.0)
    in_store(look_twice)
    runs = api.get("/v1/runs?limit=1000").json()["runs"]
    # No more than the runs since the oldest one that goes on.
    oldest = min(run["created"] for run in runs if run["finished"] is None)
    assert sorted(read) == sorted(run["created"] for run in runs if run["created"] >= oldest)
    assert len(read) < len(runs)

    assert "<h2>Curves</h2>" in page.read_text()
    assert times[0] == times[1]
    assert 'aria-label="Reward: reward/mean"' in page.read_text()
    assert not data.path(f"runs/{going}/report").exists()
    events = api.get(f"/v1/runs/{broken}/events").text
    assert "the report was not written" in events
    shown = api.get(f"/v1/runs/{reported}/report")
    assert shown.text == page.read_text()
    compared = api.get(f"/v1/runs/{reported}/report?against={going}").text
    assert f"({going})" in compared
    assert f"({going})" not in page.read_text()
    assert api.get(f"/v1/runs/{reported}/report?against=nowhere").status_code == 404
    assert "frame-ancestors 'self'; sandbox" in shown.headers["content-security-policy"]
    assert api.get(f"/v1/runs/{broken}/report").status_code == 409
    nothing = api.get(f"/v1/runs/{empty}/report")
    assert nothing.status_code == 409
    assert "has trained nothing that could be reported" in nothing.json()["detail"]
    for run in (reported, broken):
        assert api.delete(f"/v1/runs/{run}").status_code == 204
    assert not page.exists()
