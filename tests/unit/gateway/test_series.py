"""The size of an answer with metrics for charts."""

import json
from pathlib import Path

import pytest
from fastapi import Request

from services.gateway.routes.runs import series as route
from services.gateway.routes.runs.series import SeriesQuery, answer_of
from services.http import Problem
from services.series import RunSeries

REQUEST = Request({"type": "http", "method": "GET", "headers": [], "path": "/", "query_string": b"",
                   "server": ("localhost", 1), "scheme": "http"})  # fmt: skip


def test_an_answer_with_too_many_values_is_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "MOST_VALUES", 10)
    folder = tmp_path / "runs" / "r"
    folder.mkdir(parents=True)
    rows = [{"step": step, "a": 1.5, "b": 2.5} for step in range(1, 7)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def asked(names: list[str], points: int) -> list[str]:
        query = SeriesQuery(runs=["r"], names=names, points=points)
        answer = answer_of(RunSeries(tmp_path), REQUEST, query, ["r"], names)
        return [part["name"] for part in json.loads(bytes(answer.body))["series"]]

    assert asked(["a"], 100) == ["a"]
    assert asked(["a", "b"], 5) == ["a", "b"]
    with pytest.raises(Problem, match=r"more than 10 values: .* fewer runs, names or points"):
        asked(["a", "b"], 6)
