"""The guide: docs/ as a site, which the gateway serves."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from deploy import guide
from services.gateway.app import create_app
from services.gateway.routes import guide as route
from services.gateway.settings import GatewaySettings


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site. Dead links and headings fail its build."""
    pytest.importorskip("zensical", reason="`make setup` installs zensical")
    folder = tmp_path_factory.mktemp("guide") / "site"
    guide.build(folder)
    return folder


@pytest.fixture
def client(site: Path, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """A client of a gateway with the guide, without Redis and without a key."""
    monkeypatch.setattr(route, "SITE", site)
    return TestClient(create_app(GatewaySettings(), "hr-key"), base_url="http://localhost:8000")


def pages(entries: list[dict[str, object]]) -> Iterator[str]:
    for entry in entries:
        for inner in entry.values():
            if isinstance(inner, list):
                yield from pages(inner)
            else:
                yield str(inner)


def test_the_navigation_lists_each_document_once() -> None:
    config = tomllib.loads((guide.DOCS / "zensical.toml").read_text())["project"]
    documents = [str(guide.place(file)) for file in guide.DOCS.rglob("*.md")]
    assert sorted(pages(config["nav"])) == sorted(documents)


def test_the_site_loads_nothing_from_other_hosts(site: Path) -> None:
    loaded = [
        address
        for page in site.rglob("*.html")
        for address in re.findall(
            r'<(?:script|link|img)[^>]*(?:src|href)="([^"]*)"', page.read_text()
        )
    ]
    assert len(loaded) > 50
    assert [address for address in loaded if "//" in address] == []


def test_a_link_to_a_file_outside_of_the_documents_becomes_its_text() -> None:
    text = "[sums.py](../recipes/agents/sums.py), [the\nguide](guide/index.md#a), [m](metrics.md)"
    assert guide.moved(text, guide.DOCS / "agents.md") == (
        "sums.py, [the\nguide](../index.md#a), [m](metrics.md)"
    )


def test_the_guide_is_read_without_a_key_and_runs_only_its_own_scripts(client: TestClient) -> None:
    answer = client.get("/guide")
    assert answer.status_code == 200
    assert str(answer.url).endswith("/guide/")
    assert "Headrace" in answer.text
    policy = answer.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy.partition("script-src")[2].partition(";")[0]
    assert len(re.findall("'sha256-", policy)) == len(
        set(re.findall(r"<script>.*?</script>", answer.text))
    )
    assert client.get("/guide/reference/metrics/?h=reward").status_code == 200
    found = client.get("/guide/search.json")
    assert found.headers["content-encoding"] == "gzip"
    assert found.headers["cache-control"] == "no-cache"
    same = client.get("/guide/search.json", headers={"if-none-match": found.headers["etag"]})
    assert same.status_code == 304


@pytest.mark.parametrize("path", ["nothing", "../settings.py", "%2e%2e/settings.py", "a%00b"])
def test_what_is_not_in_the_guide_is_a_problem_document(client: TestClient, path: str) -> None:
    answer = client.get(f"/guide/{path}", headers={"host": "localhost:8000"})
    assert answer.status_code in {401, 404}
    assert answer.json()["detail"]


def test_a_gateway_without_the_guide_says_how_to_build_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "SITE", tmp_path)
    client = TestClient(create_app(GatewaySettings(), "hr-key"), base_url="http://localhost:8000")
    answer = client.get("/guide/")
    assert answer.status_code == 404
    assert "make guide" in answer.json()["detail"]
