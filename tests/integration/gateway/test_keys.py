"""API keys are always required. Processes that share the data folder find them."""

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from headrace.cli.main import root
from headrace.cli.output import CliError
from services.volume import GatewayAway, KeyRefused, Volume
from tests.integration.gateway.servers import GatewayProcess, RedisServer


@pytest.fixture(scope="module")
def guarded(
    tmp_path_factory: pytest.TempPathFactory, redis_server: RedisServer
) -> Iterator[GatewayProcess]:
    process = GatewayProcess(tmp_path_factory.mktemp("guarded") / "data", redis_server.url)
    yield process
    process.stop()


@pytest.fixture
def first(guarded: GatewayProcess) -> str:
    return (guarded.data / "api-key").read_text().strip()


@pytest.fixture
def client(guarded: GatewayProcess, first: str) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {first}"}
    with httpx.Client(base_url=guarded.url, headers=headers, timeout=30) as client:
        yield client


def headrace(*arguments: str, **environment: str) -> str:
    result = CliRunner().invoke(root, arguments, env=environment)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def test_the_first_key_is_made_at_the_first_start_and_logged_never(
    guarded: GatewayProcess, first: str, redis_server: RedisServer
) -> None:
    file = guarded.data / "api-key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = GatewayProcess(guarded.data, redis_server.url)
    try:
        assert first not in again.said
        shown = httpx.get(f"{again.url}/v1/runs", headers={"Authorization": f"Bearer {first}"})
        assert shown.status_code == 200
    finally:
        again.stop()
    assert file.read_text().strip() == first


@pytest.mark.parametrize("path", ["/v1/runs", "/v1/recipes", "/v1/files/x", "/metrics"])
def test_the_api_needs_a_key(guarded: GatewayProcess, path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer hr-wrong"}, {"Cookie": "headrace-key=hr-wrong"}):
        response = httpx.get(guarded.url + path, headers=headers)
        assert response.status_code == 401
        assert response.headers["www-authenticate"].startswith("Bearer")
        assert response.headers["content-type"] == "application/problem+json"
        assert "HEADRACE_API_KEY" in response.json()["detail"]


@pytest.mark.parametrize("path", ["/", "/runs/any", "/healthz", "/readyz", "/docs"])
def test_the_page_and_health_need_no_key(guarded: GatewayProcess, path: str) -> None:
    assert httpx.get(guarded.url + path).status_code == 200


def test_an_upload_without_a_key_is_refused_and_leaves_nothing(
    guarded: GatewayProcess, client: httpx.Client
) -> None:
    file = {"file": ("x.jsonl", b'{"question": "1", "answer": "2"}\n' * 5000)}
    refused = httpx.post(f"{guarded.url}/v1/datasets", data={"name": "strange"}, files=file)
    assert refused.status_code == 401
    assert client.get("/v1/datasets/strange").status_code == 404


def test_a_key_is_made_used_and_revoked(guarded: GatewayProcess, client: httpx.Client) -> None:
    made = client.post("/v1/keys", json={"name": "the rack"}).json()
    mine = {"Authorization": f"Bearer {made['key']}"}
    assert httpx.get(f"{guarded.url}/v1/runs", headers=mine).status_code == 200

    listed = client.get("/v1/keys")
    assert [(k["id"], k["name"]) for k in listed.json()["keys"]] == [(made["id"], "the rack")]
    assert made["key"] not in listed.text
    assert made["key"] not in guarded.said
    copy = guarded.data / "keys" / f"{made['id']}.json"
    assert made["key"] not in copy.read_text()
    assert json.loads(copy.read_text())["record"]["name"] == "the rack"
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600

    assert client.delete(f"/v1/keys/{made['id']}").status_code == 204
    assert json.loads(copy.read_text())["revoked"] is True
    refused = httpx.get(f"{guarded.url}/v1/runs", headers=mine)
    assert refused.status_code == 401
    assert "revoked" in refused.json()["detail"]
    assert client.delete(f"/v1/keys/{made['id']}").status_code == 404


def test_a_role_limits_what_a_key_may_do(guarded: GatewayProcess, client: httpx.Client) -> None:
    there = {"HEADRACE_GATEWAY_URL": guarded.url, "HEADRACE_DATA": str(guarded.data)}
    keys = {role: headrace("keys", "add", role, "--role", role, **there).strip()
            for role in ("read", "submit")}  # fmt: skip
    file = {"file": ("of-roles.jsonl", b'{"question": "1", "answer": "2"}\n')}

    def asked(role: str, method: str, path: str, **request: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {keys[role]}"}
        return httpx.request(method, guarded.url + path, headers=headers, **request)

    assert asked("read", "GET", "/v1/runs").status_code == 200
    refused = asked("read", "POST", "/v1/datasets", files=file)
    assert refused.status_code == 403
    assert refused.json()["detail"] == (
        "POST /v1/datasets needs a key with the role submit; the key 'read' has the role read. An "
        "admin makes one: `headrace keys add NAME --role submit`"
    )
    assert client.get("/v1/datasets/of-roles").status_code == 404
    assert asked("submit", "POST", "/v1/datasets", files=file).status_code == 201
    for method, path in (("GET", "/v1/keys"), ("POST", "/v1/keys"), ("DELETE", "/v1/keys/x"),
                         ("PUT", "/v1/files/runs/x/payloads/x")):  # fmt: skip
        refused = asked("submit", method, path)
        assert (refused.status_code, "role admin" in refused.text) == (403, True), path
    # The page's session has the role of its key.
    token = asked("read", "POST", "/v1/login").json()["token"]
    with httpx.Client(base_url=guarded.url) as browser:
        browser.post("/v1/session", json={"key": token}, headers={"Origin": guarded.url})
        assert browser.get("/v1/runs").status_code == 200
        refused = browser.delete("/v1/datasets/of-roles", headers={"Origin": guarded.url})
        assert (refused.status_code, "role submit" in refused.text) == (403, True)
    assert client.delete("/v1/datasets/of-roles").status_code == 204
    roles = [line.split()[2] for line in headrace("keys", "list", **there).splitlines()[1:]]
    assert {"read", "submit"} <= {*roles}
    for key in client.get("/v1/keys").json()["keys"]:
        client.delete(f"/v1/keys/{key['id']}")


def test_a_key_of_a_project_sees_its_files_alone(
    guarded: GatewayProcess, client: httpx.Client
) -> None:
    there = {"HEADRACE_GATEWAY_URL": guarded.url, "HEADRACE_DATA": str(guarded.data)}
    limits = ("--role", "submit", "--surface", "openai")
    key = headrace("keys", "add", "tuning", *limits, "--project", "support", **there).strip()
    files = f"{guarded.url}/openai/v1/files"
    row = b'{"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]}'

    def made(**headers: str) -> str:
        data, rows = {"purpose": "fine-tune"}, {"file": ("rows.jsonl", row)}
        sent = httpx.post(files, data=data, files=rows, headers=headers)
        assert "project" not in sent.json()
        return str(sent.json()["id"])

    def seen(**headers: str) -> list[str]:
        return [file["id"] for file in httpx.get(files, headers=headers).json()["data"]]

    mine = {"Authorization": f"Bearer {key}", "OpenAI-Organization": "org-1"}
    all_projects = {"Authorization": client.headers["Authorization"]}
    ours, theirs = made(**mine), made(**all_projects, **{"OpenAI-Project": "other"})
    assert seen(**mine) == [ours]
    assert seen(**all_projects, **{"OpenAI-Project": "other"}) == [theirs]
    assert {*seen(**all_projects)} == {ours, theirs}
    for method, path in (("GET", theirs), ("GET", f"{theirs}/content"), ("DELETE", theirs)):
        assert httpx.request(method, f"{files}/{path}", headers=mine).status_code == 404
    record = json.loads((guarded.data / "openai" / "files" / ours / "record.json").read_text())
    assert (record["project"], record["organization"]) == ("support", "org-1")
    mismatched = httpx.get(files, headers={**mine, "OpenAI-Project": "other"})
    assert mismatched.json()["error"]["code"] == "mismatched_project"
    refused = httpx.get(f"{guarded.url}/v1/runs", headers=mine)
    assert (refused.status_code, "limited to /openai/v1/" in refused.text) == (403, True)
    assert httpx.get(f"{guarded.url}/v1/models", headers=mine).json()["data"] == []
    entered = httpx.post(f"{guarded.url}/v1/session", json={"key": key})
    assert entered.status_code == 403, "the page could show this key nothing"
    assert "openai, project support" in headrace("keys", "list", **there)
    refused = client.post("/v1/keys", json={"name": "x", "project": "support"})
    assert (refused.status_code, "needs surface" in refused.text) == (422, True)
    for made_key in client.get("/v1/keys").json()["keys"]:
        client.delete(f"/v1/keys/{made_key['id']}")
    for file in (ours, theirs):
        assert httpx.delete(f"{files}/{file}", headers=all_projects).status_code == 200


def test_the_command_line_finds_the_key_or_takes_it(
    guarded: GatewayProcess, first: str, tmp_path: Path
) -> None:
    there = {"HEADRACE_GATEWAY_URL": guarded.url, "HEADRACE_DATA": str(guarded.data)}
    runs = json.loads(headrace("runs", "--limit", "0", "--json", **there))

    elsewhere = {"HEADRACE_GATEWAY_URL": guarded.url, "HEADRACE_DATA": str(tmp_path)}
    with pytest.raises(CliError, match="asks for an API key"):
        headrace("runs", **elsewhere)
    kept = tmp_path / "mine"
    kept.write_text(first + "\n")
    for way in ({"HEADRACE_API_KEY": first}, {"HEADRACE_API_KEY_FILE": str(kept)}):
        assert json.loads(headrace("runs", "--limit", "0", "--json", **elsewhere, **way)) == runs


async def test_a_host_without_the_volume_needs_a_key_for_its_files(
    guarded: GatewayProcess, first: str, tmp_path: Path
) -> None:
    (guarded.data / "runs" / "aa" / "weights").mkdir(parents=True)
    (guarded.data / "runs" / "aa" / "weights" / "x").write_bytes(b"rows")
    stranger = Volume(tmp_path / "stranger", guarded.url)
    with pytest.raises(GatewayAway, match="set HEADRACE_API_KEY on this host"):
        await stranger.fetch("runs/aa/weights/x")
    friend = Volume(tmp_path / "friend", guarded.url, first)
    assert (await friend.fetch("runs/aa/weights/x")).read_bytes() == b"rows"


async def test_a_wrong_key_is_named_at_once(guarded: GatewayProcess, tmp_path: Path) -> None:
    name = "runs/aa/weights/y"
    with pytest.raises(KeyRefused, match="set HEADRACE_API_KEY on this host"):
        await Volume(tmp_path, guarded.url, "hr-another").fetch(name)
    assert guarded.said.count(name) == 1, "asking again would not help"
