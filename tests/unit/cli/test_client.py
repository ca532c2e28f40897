"""What the client of the gateway makes of a URL."""

import pytest

from services.cli.client import Gateway
from services.cli.output import CliError


def test_a_password_in_the_gateways_url_is_never_shown() -> None:
    with pytest.raises(
        CliError, match=r"no gateway at http://user:\*\*\*@127\.0\.0\.1:1: "
    ) as raised:
        Gateway("http://user:hunter2@127.0.0.1:1").get("/v1/runs")
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("url", ["http://[::1", "ftp://127.0.0.1:1"])
def test_what_is_no_url_is_refused_in_a_sentence(url: str) -> None:
    with pytest.raises(CliError, match=r"is not a URL like http://127\.0\.0\.1:8000"):
        Gateway(url).get("/v1/runs")
