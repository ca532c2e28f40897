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


@pytest.mark.parametrize(
    "text",
    [
        "no https://us3r:s3cr%2Ft@host/p4thkey/mcp?token=qu3rykey there",
        "Redirect to http://host/p4thkey/mcp/",
        "no key qu3rykey",
        "GET /p4thkey/x",
        "wrong password s3cr/t, also s3cr%2Ft",
        "https://us3r:s3cr%2Ft@other/",
    ],
)
def test_no_part_of_a_url_that_may_be_a_key_is_spelled(text: str) -> None:
    (server,) = tool_servers(
        SecretStr("web=https://us3r:s3cr%2Ft@host/p4thkey/mcp?token=qu3rykey")
    ).values()

    hidden = server.hidden_in(text)
    assert "***" in hidden
    assert not [key for key in ("s3cr", "p4thkey", "qu3rykey") if key in hidden]


def test_a_url_without_keys_hides_little() -> None:
    (server,) = tool_servers(SecretStr("web=http://me@box:9/?a=b")).values()

    text = "me: no answer of http://box:9/ in 3 s, a=b"
    assert server.hidden_in(text) == text


def test_an_empty_setting_names_no_tool_server() -> None:
    assert tool_servers(None) == tool_servers(SecretStr(" ")) == {}


def test_an_unknown_server_is_refused_with_the_known_ones() -> None:
    assert "there is no MCP server 'a'; there is b, c." in unknown_server("a", ["c", "b"])
    assert "there is none." in unknown_server("a", [])
    assert "it is named twice" in unknown_server("a", ["b"], "it is named twice")
