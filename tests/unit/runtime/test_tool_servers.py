"""HEADRACE_MCP_SERVERS: what it names, and what is wrong with it."""

import pytest
from pydantic import SecretStr

from services.runtime.tool_servers import tool_servers, unknown_server, usable


@pytest.mark.parametrize(
    "text",
    [
        "sums=http://box:9/mcp, web=https://k:s3cret@host/mcp?key=a",
        '["sums=http://box:9/mcp", "web=https://k:s3cret@host/mcp?key=a"]',
    ],
)
def test_servers_are_named_with_commas_or_as_json(text: str) -> None:
    found = tool_servers(SecretStr(text))

    assert usable(found) == ["sums", "web"]
    assert found["web"].url == "https://k:s3cret@host/mcp?key=a"
    assert "s3cret" not in repr(found)


def test_an_entry_that_is_wrong_disables_its_server_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = "sums=http://box/mcp,file=/etc/s3cret,port=http://h:s3cret/,s3cret,two=http://a,two=http://b"
    found = tool_servers(SecretStr(text))

    assert usable(found) == ["sums"]
    assert "form http://HOST:PORT/PATH" in found["file"].problem
    assert "form http://HOST:PORT/PATH" in found["port"].problem
    assert found["two"].problem == "it is named twice"
    assert "s3cret" not in capsys.readouterr().out


def test_none_is_none() -> None:
    assert tool_servers(None) == tool_servers(SecretStr(" ")) == {}


def test_an_unknown_server_is_refused_with_those_there_are() -> None:
    assert "there is no MCP server 'a'; there is b, c." in unknown_server("a", ["c", "b"])
    assert "there is none." in unknown_server("a", [])
    assert "it is named twice" in unknown_server("a", ["b"], "it is named twice")
