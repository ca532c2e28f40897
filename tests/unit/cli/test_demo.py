"""`headrace demo` starts an installation and its runs."""

from pathlib import Path

from services.cli.host.demo import installation
from services.launch import UpOptions


def test_the_demo_stops_as_patiently_as_any_installation() -> None:
    """A part that is killed while it stops looks like a failure at the end of a first success."""
    assert installation(Path("there")).grace == UpOptions().grace == 20
