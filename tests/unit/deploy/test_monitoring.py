"""Prometheus' alerts and Grafana's panels use metrics that the processes export."""

import re
from pathlib import Path

import pytest

from tests.unit.test_docs import documented

MONITORING = Path(__file__).parents[3] / "deploy" / "monitoring"


def asked(file: Path) -> set[str]:
    """The metrics in the expressions of a file."""
    expressions = re.findall(r'"?expr"?: (.*)', file.read_text())
    return {name for text in expressions for name in re.findall(r"headrace_\w+", text)}


@pytest.mark.parametrize("file", ["alerts.yml", "grafana/boards/headrace.json"])
def test_boards_and_alerts_use_only_metrics_that_exist(file: str) -> None:
    exported = {re.sub(r"[^a-z_]", "_", f"headrace_{name}") for name in documented()}
    exported |= {name for name in documented() if name.startswith("headrace_")}
    assert len(asked(MONITORING / file)) > 2
    assert asked(MONITORING / file) <= exported
