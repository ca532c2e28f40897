"""The page's session is separate from the key, expires, and is closed to other sites."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import redis

from tests.integration.gateway.servers import GatewayProcess, RedisServer


def once(method: str, url: str, **request: Any) -> httpx.Response:
    """A request of somebody who keeps no cookies. Without certificates, which take long to read."""
    with httpx.Client(verify=False, timeout=30) as client:
        return client.request(method, url, **request)


@pytest.fixture(scope="module")
def gateway(
    tmp_path_factory: pytest.TempPathFactory, redis_server: RedisServer
) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("gateway")
    process = GatewayProcess(
        folder / "data", redis_server.url, HEADRACE_ALLOWED_HOSTS="train.example, page"
    )
    yield process
    process.stop()


@pytest.fixture
def key(gateway: GatewayProcess) -> str:
    return gateway.headers["Authorization"].removeprefix("Bearer ")


@pytest.fixture
def owner(gateway: GatewayProcess) -> Iterator[httpx.Client]:
    """Somebody with a key."""
    with httpx.Client(
        verify=False, base_url=gateway.url, headers=gateway.headers, timeout=30
    ) as client:
        yield client


@pytest.fixture
def browser(gateway: GatewayProcess, key: str) -> Iterator[httpx.Client]:
    """A browser that shows the page, logged in."""
    own = {"Origin": gateway.url, "Sec-Fetch-Site": "same-origin"}
    with httpx.Client(verify=False, base_url=gateway.url, headers=own, timeout=30) as client:
        assert client.post("/v1/session", json={"key": key}).status_code == 204
        yield client


def cookie(response: httpx.Response) -> str:
    return str(response.headers["set-cookie"])


def test_the_cookie_differs_from_the_key_and_is_kept_as_an_expiring_hash(
    browser: httpx.Client, gateway: GatewayProcess, key: str, redis_server: RedisServer
) -> None:
    (token,) = browser.cookies.values()
    assert browser.get("/v1/runs").status_code == 200
    assert token != key
    as_key = {"Authorization": f"Bearer {token}"}
    assert once("GET", f"{gateway.url}/v1/runs", headers=as_key).status_code == 401
    with redis.Redis.from_url(redis_server.url) as client:
        names = list(client.scan_iter("headrace:session:*"))
        assert names
        for name in names:
            assert token.encode() not in name
            assert key.encode() not in client.get(name)
            assert 0 < client.ttl(name) <= 7 * 24 * 3600
    assert token not in gateway.said


def test_logout_ends_the_session_and_not_only_the_cookie(
    browser: httpx.Client, gateway: GatewayProcess
) -> None:
    stolen = {"Cookie": "; ".join(f"{name}={value}" for name, value in browser.cookies.items())}
    assert once("GET", f"{gateway.url}/v1/runs", headers=stolen).status_code == 200
    assert browser.delete("/v1/session").status_code == 204
    assert not browser.cookies
    assert once("GET", f"{gateway.url}/v1/runs", headers=stolen).status_code == 401


def test_a_revoked_key_ends_its_sessions(owner: httpx.Client, gateway: GatewayProcess) -> None:
    made = owner.post("/v1/keys", json={"name": "guest"}).json()
    with httpx.Client(verify=False, base_url=gateway.url) as guest:
        assert guest.post("/v1/session", json={"key": made["key"]}).status_code == 204
        assert guest.get("/v1/runs").status_code == 200
        assert owner.delete(f"/v1/keys/{made['id']}").status_code == 204
        assert guest.get("/v1/runs").status_code == 401


def test_scripts_other_sites_and_other_ports_never_get_the_cookie(
    gateway: GatewayProcess, key: str
) -> None:
    port = gateway.url.rpartition(":")[2]
    plain = cookie(once("POST", f"{gateway.url}/v1/session", json={"key": key}))
    assert plain.startswith(f"headrace-{port}=")
    # The browser still uses https if a proxy terminates TLS.
    headers = {"Host": "train.example", "Origin": "https://train.example"}
    secure = cookie(once("POST", f"{gateway.url}/v1/session", json={"key": key}, headers=headers))
    assert secure.startswith("__Host-headrace-443=")
    assert "secure" in secure.lower().split("; ")
    for header in (plain, secure):
        parts = header.lower().split("; ")
        assert {"httponly", "samesite=strict", "path=/"} <= {*parts}
        assert "domain" not in header.lower()
    token = secure.partition(";")[0]
    shown = {"Host": "train.example", "Cookie": token}
    assert once("GET", f"{gateway.url}/v1/runs", headers=shown).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://elsewhere.example"},
        {"Origin": "http://localhost:1"},
        {"Origin": "null"},
        {"Origin": "http://[::1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "https://elsewhere.example", "Sec-Fetch-Site": "same-origin"},
        {},
    ],
    ids=str,
)
def test_a_change_with_the_cookie_comes_from_the_own_page_only(
    browser: httpx.Client, owner: httpx.Client, gateway: GatewayProcess, headers: dict[str, str]
) -> None:
    before = owner.get("/v1/keys").json()
    with httpx.Client(
        verify=False, base_url=gateway.url, cookies=browser.cookies, headers=headers
    ) as elsewhere:
        refused = elsewhere.post("/v1/keys", json={"name": "planted"})
        assert refused.status_code == 403, refused.text
        assert "Authorization: Bearer" in refused.json()["detail"]
    assert owner.get("/v1/keys").json() == before


@pytest.mark.parametrize("headers", [{"Origin": "{url}"}, {"Sec-Fetch-Site": "same-origin"}])
def test_the_own_page_may_change_things(
    browser: httpx.Client, gateway: GatewayProcess, headers: dict[str, str]
) -> None:
    named = {name: value.format(url=gateway.url) for name, value in headers.items()}
    with httpx.Client(
        verify=False, base_url=gateway.url, cookies=browser.cookies, headers=named
    ) as page:
        made = page.post("/v1/keys", json={"name": "mine"})
        assert made.status_code == 201
        assert page.delete(f"/v1/keys/{made.json()['id']}").status_code == 204


def test_another_sites_page_can_log_nobody_in(gateway: GatewayProcess, key: str) -> None:
    url = f"{gateway.url}/v1/session"
    foreign = {"Origin": "https://elsewhere.example"}
    assert once("POST", url, json={"key": key}, headers=foreign).status_code == 403
    # A form can send these types without a preflight request.
    text = {"Content-Type": "text/plain"}
    assert once("POST", url, content=f'{{"key": "{key}"}}', headers=text).status_code in (415, 422)


def test_a_login_link_begins_one_session(
    owner: httpx.Client, browser: httpx.Client, gateway: GatewayProcess, key: str
) -> None:
    token = owner.post("/v1/login").json()["token"]
    assert token not in (key, *browser.cookies.values())
    bearer = {"Authorization": f"Bearer {token}"}
    assert once("GET", f"{gateway.url}/v1/runs", headers=bearer).status_code == 401
    with httpx.Client(verify=False, base_url=gateway.url) as guest:
        assert guest.post("/v1/session", json={"key": token}).status_code == 204
        assert guest.get("/v1/runs").status_code == 200
        assert guest.post("/v1/session", json={"key": token}).status_code == 401
    assert browser.post("/v1/login").status_code == 403, "a session makes no further ones"
    assert gateway.said.count(token) == 0


@pytest.mark.parametrize("host", ["rebound.example", "rebound.example:8000", "printer", "x.local"])
@pytest.mark.parametrize("path", ["/", "/docs", "/v1/runs", "/v1/session"])
def test_a_page_that_gives_its_own_name_this_address_gets_nothing(
    browser: httpx.Client, host: str, path: str
) -> None:
    port = host.partition(":")[2] or 80
    (token,) = browser.cookies.values()
    headers = {"Host": host, "Cookie": f"headrace-{port}={token}"}
    response = browser.get(path, headers=headers)
    assert response.status_code == 403
    assert "HEADRACE_ALLOWED_HOSTS" in response.json()["detail"]


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1:9", "[::1]:9", "10.1.2.3", "train.example", "Page:80"]
)
def test_names_that_the_operator_gave_and_addresses_reach_the_page(
    gateway: GatewayProcess, host: str
) -> None:
    assert once("GET", gateway.url, headers={"Host": host}).status_code == 200


def test_a_key_works_under_any_name(owner: httpx.Client) -> None:
    assert owner.get("/v1/runs", headers={"Host": "gateway:8000"}).status_code == 200


@pytest.mark.parametrize("host", ["[::1", "[x]", "a b", "a/b", "a:b:c", "user@host"])
def test_an_invalid_host_is_a_bad_request(owner: httpx.Client, host: str) -> None:
    for path in ("/v1/runs", "/", "/healthz", "/nothing"):
        assert owner.get(path, headers={"Host": host}).status_code == 400


@pytest.mark.parametrize("path", ["/", "/docs", "/page/app.js", "/v1/runs", "/healthz", "/nothing"])
def test_every_answer_tells_browsers_what_not_to_do(owner: httpx.Client, path: str) -> None:
    headers = owner.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
