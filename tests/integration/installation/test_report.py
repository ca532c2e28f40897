"""`headrace report` on runs of a whole installation."""

import json
from pathlib import Path

from typer.testing import CliRunner

from headrace.cli.main import root
from tests.integration.installation.conftest import Installation


def test_a_report_that_compares_two_runs_is_one_page(
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
    assert Path(said["html"]) == tmp_path / "there" / "report.html"
    page = Path(said["html"]).read_text()
    for chart in ("Reward", "Length of answers", "Entropy", "Staleness", "Throughput", "Loss"):
        assert f'aria-label="{chart}: ' in page
    for heading in ("Results", "Curves", "Answers before and after", "How to repeat it"):
        assert f"<h2>{heading}</h2>" in page
    assert f"({before})" in page
