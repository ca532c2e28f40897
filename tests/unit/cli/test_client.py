"""The gateway's client reads URLs, and survives a gateway that comes and goes."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import httpx
import pytest
from typer.testing import CliRunner

from headrace.cli import client
from headrace.cli.client import Gateway
from headrace.cli.events import Event
from headrace.cli.main import root
from headrace.cli.output import NO_GATEWAY, CliError

PING = ": ping\n\n"
EVENT = {"id": "7-0", "time": 1.0, "kind": "state", "data": {"state": "succeeded"}}


@contextmanager
def serving(streams: list[str]) -> Iterator[str]:
    """A gateway whose run is over with the last of `streams`, its answers to who follows it: all
    before the last break off. Its URL."""
    left = list(streams)

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if not self.path.endswith("/events"):
                body = json.dumps({"state": "running" if left else "succeeded"}).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                return
            said = left.pop(0).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(said) + (1 if left else 0)))
            # Said, as well as done: the client must not ask its next question on this connection.
            self.send_header("connection", "close")
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *arguments: object) -> None:
            """Nothing is printed."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


class Losing(BaseHTTPRequestHandler):
    """Loses its answer to the first request, and is busy with the first one at the second."""

    protocol_version = "HTTP/1.1"
    keys: ClassVar[list[str | None]] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.keys.append(self.headers["Idempotency-Key"])
        if len(self.keys) == 1:
            self.close_connection = True
            return
        self.send_response(409 if len(self.keys) == 2 else 201)
        self.send_header("Retry-After", "0")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


def test_a_write_whose_answer_was_lost_is_sent_again_with_its_key() -> None:
    Losing.keys.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Losing) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        try:
            api = Gateway(f"http://127.0.0.1:{server.server_port}")
            assert api.post("/v1/runs", json={"recipe": "grpo"}) == {}
            assert api.post("/v1/runs", json={"recipe": "grpo"}) == {}
        finally:
            server.shutdown()
    first, *again, other = Losing.keys
    assert again == [first, first]
    assert first
    assert other != first


def test_a_password_in_the_gateways_url_is_never_shown() -> None:
    with pytest.raises(
        CliError, match=r"no gateway at http://user:\*\*\*@127\.0\.0\.1:1: "
    ) as raised:
        Gateway("http://user:hunter2@127.0.0.1:1").get("/v1/runs")
    assert "hunter2" not in str(raised.value)


def test_an_error_names_the_stale_variable_that_caused_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_GATEWAY_URL", "http://127.0.0.1:1")
    with pytest.raises(CliError, match=r"1, which HEADRACE_GATEWAY_URL in the environment names: "):
        Gateway().get("/v1/runs")

    monkeypatch.setenv("HEADRACE_DATA", str(tmp_path / "gone"))
    with pytest.raises(CliError, match=r"HEADRACE_DATA in .* names .*/gone, which is no folder$"):
        Gateway().get("/v1/runs")

    monkeypatch.setenv("HEADRACE_DATA", str(tmp_path))
    (tmp_path / "api-key").write_text("hr-of-another-gateway\n")
    refused = httpx.MockTransport(lambda request: httpx.Response(401, json={"detail": "no"}))
    api = Gateway()
    monkeypatch.setattr(api._client, "_transport_for_url", lambda url: refused)
    with pytest.raises(CliError) as raised:
        api.get("/v1/runs")
    assert str(raised.value) == (
        f"no. This command showed the key in {tmp_path / 'api-key'}; HEADRACE_DATA in the "
        "environment names the folder"
    )


def _refuse_connection(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused")


def test_a_refusal_without_a_data_folder_names_the_variable_and_the_lines_to_paste(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADRACE_DATA", raising=False)
    monkeypatch.delenv("HEADRACE_API_KEY", raising=False)
    monkeypatch.delenv("HEADRACE_GATEWAY_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    away = Gateway()
    gone = httpx.MockTransport(_refuse_connection)
    monkeypatch.setattr(away._client, "_transport_for_url", lambda url: gone)
    with pytest.raises(CliError, match=r"If one runs, paste the `export` lines that `headrace up`"):
        away.get("/v1/runs")

    refused = httpx.MockTransport(lambda request: httpx.Response(401, json={"detail": "no"}))
    api = Gateway("http://127.0.0.1:1")
    monkeypatch.setattr(api._client, "_transport_for_url", lambda url: refused)
    with pytest.raises(CliError) as raised:
        api.get("/v1/runs")
    assert str(raised.value) == (
        f"no. This command found no key in {tmp_path / 'headrace-data' / 'api-key'}. "
        "HEADRACE_DATA, which names the gateway's data folder, is not set: paste the `export` "
        "lines that `headrace up` printed, or set HEADRACE_API_KEY"
    )


def test_chat_without_a_gateway_says_that_a_checkpoint_needs_none() -> None:
    asked = ["chat", "sums", "1+1", "--gateway", "http://127.0.0.1:1"]
    result = CliRunner().invoke(root, asked)
    assert isinstance(result.exception, CliError)
    assert "no gateway at http://127.0.0.1:1: start one" in result.exception.message
    assert "A model's folder needs no gateway: name a checkpoint" in result.exception.message
    assert result.exception.code == NO_GATEWAY


def test_the_data_folder_of_a_command_chooses_the_key(tmp_path: Path) -> None:
    (tmp_path / "api-key").write_text("hr-0123456789abcdef\n")
    api = Gateway("http://127.0.0.1:1", data=tmp_path)
    assert api._client.headers["Authorization"] == "Bearer hr-0123456789abcdef"


@pytest.mark.parametrize("url", ["http://[::1", "ftp://127.0.0.1:1"])
def test_an_invalid_url_is_refused_in_a_sentence(url: str) -> None:
    with pytest.raises(CliError, match=r"is not a URL like http://127\.0\.0\.1:8000"):
        Gateway(url).get("/v1/runs")


def test_a_watcher_is_patient_anew_whenever_it_has_heard_the_gateway(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # It tries again after a second each time, so its patience would be over at the second break.
    monkeypatch.setattr(client, "PATIENCE", 0.9)
    with serving([PING, PING, f"data: {json.dumps(EVENT)}\n\n"]) as url:
        heard = list(Gateway(url).events("9f3a"))
    assert heard[-1] == Event.parsed(json.dumps(EVENT))
    assert len(heard) == 3, "two remarks about a lost connection"


def test_a_watcher_that_gives_up_says_how_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PATIENCE", 0.9)
    with pytest.raises(CliError) as raised:
        list(Gateway("http://127.0.0.1:1").events("9f3a"))
    assert "the run goes on without being watched" in str(raised.value)
    assert "headrace watch 9f3a" in str(raised.value)
    assert raised.value.code == NO_GATEWAY


def test_a_command_to_copy_names_an_unusual_gateway(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEADRACE_GATEWAY_URL", "http://usual:1")
    assert Gateway().command("why", "a1") == "headrace why a1"
    assert Gateway("usual:1/").command("why", "a1") == "headrace why a1"
    other = Gateway("http://other:2")
    assert other.command("why", "a1") == "headrace why a1 --gateway http://other:2"
    played = other.command("agents", "a1", "--", "COMMAND")
    assert played == "headrace agents a1 --gateway http://other:2 -- COMMAND"
