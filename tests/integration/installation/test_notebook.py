"""The notebook for a first run, cell after cell, against a whole installation."""

import ast
import json
from typing import Any

import pytest

from headrace import Chart, Run
from tests.integration.installation.conftest import ROOT, Installation

NOTEBOOK = ROOT / "examples" / "first_run.ipynb"
PARAMETERS = "EXAMPLE_STEPS, STEPS = 3, 2"


def executed(cell: str, name: str, names: dict[str, Any]) -> Any:
    """Run the code of a cell as a notebook does: return the value of its last expression."""
    body = ast.parse(cell, name).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), name, "exec"), names)
    if not isinstance(last, ast.Expr):
        return None
    return eval(compile(ast.Expression(last.value), name, "eval"), names)


def test_the_notebook_for_a_first_run_works_from_its_first_cell_to_its_last(
    installation: Installation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_GATEWAY_URL", installation.stack.gateway_url)
    monkeypatch.setenv("HEADRACE_API_KEY", str(installation.stack.api_key))
    cells = [
        each for each in json.loads(NOTEBOOK.read_text())["cells"] if each["cell_type"] == "code"
    ]
    assert [each for each in cells if each["outputs"] or each["execution_count"]] == []

    names: dict[str, Any] = {}
    shown = []
    for number, cell in enumerate(cells):
        has_parameters = cell["metadata"].get("tags") == ["parameters"]
        source = PARAMETERS if has_parameters else "".join(cell["source"])
        shown.append(executed(source, f"{NOTEBOOK.name}[{number}]", names))

    assert names["STEPS"] == 2
    loss, reward = (each for each in shown if isinstance(each, Chart))
    run = shown[-1]
    assert isinstance(run, Run)
    assert [curve.name for curve in loss.curves] == ["train/loss"]
    assert [len(curve.x) for curve in reward.curves] == [2, 2]
    assert run.state == "succeeded"
    printed = capsys.readouterr().out.splitlines()
    assert printed[:2] == ["11+19 30 correct 1.0", "11+19 7 wrong 0.0"]
    assert [line.partition(":")[0] for line in printed[2:4]] == ["step 1", "step 2"]
    assert len(printed) == 9
