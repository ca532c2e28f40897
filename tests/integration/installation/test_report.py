"""`headrace report` on runs of a whole installation."""

import json
from pathlib import Path

from typer.testing import CliRunner

from services.cli.main import root
from tests.integration.installation.conftest import Installation


def test_a_report_that_compares_two_runs_is_a_page_and_a_text(
    installation: Installation, tmp_path: Path
) -> None:
    rewards = [{"verifier": "exact"}, {"verifier": "length", "params": {"maximum": 9}}]
    run, _ = installation.ended(installation.submit(data={"dataset": "sums"}, rewards=rewards))
    assert run["state"] == "succeeded", run["reason"]
    before = installation.model.removeprefix("run:")
    arguments = ["report", run["id"], "--against", before, "--out", str(tmp_path / "there")]
    environment = {
        "HEADRACE_GATEWAY_URL": installation.stack.gateway_url,
        "HEADRACE_DATA": str(installation.stack.data),
    }

    result = CliRunner().invoke(root, [*arguments, "--json"], env=environment)

    assert result.exit_code == 0, result.output
    said = json.loads(result.output)
    page, text = Path(said["html"]).read_text(), Path(said["markdown"]).read_text()
    plots = {path.stem for path in (tmp_path / "there" / "plots").iterdir()}
    assert plots >= {"reward", "length", "entropy", "staleness", "throughput", "loss"}
    assert page.count('src="data:image/png;base64,') == len(plots) == text.count("](plots/")
    for heading in ("Answers before and after", "What became of every task", "How to repeat it"):
        assert f"<h2>{heading}</h2>" in page
        assert f"## {heading}" in text
    assert f"({before})" in page
    assert "<td>trained</td><td>8</td>" in page
    assert "<td>lost</td><td>0</td>" in page
