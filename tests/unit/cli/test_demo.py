"""`headrace demo` starts an installation and its runs."""

from pathlib import Path

from services.cli.host.demo import greeting, installation
from services.launch import UpOptions


def test_the_demo_stops_as_patiently_as_any_installation() -> None:
    """A part that is killed while it stops looks like a failure at the end of a first success."""
    assert installation(Path("there")).grace == UpOptions().grace == 20


def test_the_demo_prints_a_way_into_its_page_and_the_variables_for_another_terminal() -> None:
    variables = {"HEADRACE_GATEWAY_URL": "http://127.0.0.1:9", "HEADRACE_DATA": "/my data"}
    key = Path("/my data/api-key")
    exports = (
        "For `headrace` in another terminal:\n"
        "  export HEADRACE_GATEWAY_URL=http://127.0.0.1:9\n"
        "  export HEADRACE_DATA='/my data'"
    )
    assert greeting("http://127.0.0.1:9", False, variables, key) == (
        "The page, as long as the demo works: http://127.0.0.1:9 (it asks for the API key, which "
        f"is in /my data/api-key)\n{exports}"
    )
    assert greeting("http://127.0.0.1:9/#login=t", True, variables, key) == (
        "The page, as long as the demo works: http://127.0.0.1:9/#login=t (the link works once)\n"
        f"{exports}"
    )
