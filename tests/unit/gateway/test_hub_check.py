"""A model's name is looked up on the hub before its run is queued, if the hub can be asked."""

import asyncio
from pathlib import Path

import httpx
import pytest

from services.gateway.submission.hub_check import HubVerdict, asked_of_hub


def asked(status: int | None, **environment: str) -> tuple[HubVerdict, list[httpx.Request]]:
    """The verdict on `org/model` if the hub answers `status`, and the requests. None: the hub is
    away."""
    requests = []

    def hub(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        if status is None:
            raise httpx.ConnectError("no route", request=request)
        return httpx.Response(status)

    async def ask() -> HubVerdict:
        async with httpx.AsyncClient(transport=httpx.MockTransport(hub)) as http:
            return await asked_of_hub(http, "org/model", environment)

    return asyncio.run(ask()), requests


@pytest.mark.parametrize("status", [401, 404])
def test_a_name_that_the_hub_does_not_have_is_refused(status: int, tmp_path: Path) -> None:
    said, requests = asked(status, HF_HOME=str(tmp_path), HF_ENDPOINT="http://hub/", HF_TOKEN="t")
    assert said.refusal.startswith("the hub has no model 'org/model', or keeps it closed")
    (request,) = requests
    assert str(request.url) == "http://hub/api/models/org/model"
    assert request.headers["Authorization"] == "Bearer t"


def test_a_model_that_the_hub_has_is_accepted(tmp_path: Path) -> None:
    assert asked(200, HF_HOME=str(tmp_path))[0] == HubVerdict()


@pytest.mark.parametrize(
    ("status", "reason"), [(429, "it answers 429"), (500, "it answers 500"), (None, "ConnectError")]
)
def test_a_hub_that_cannot_tell_gives_a_warning(
    status: int | None, reason: str, tmp_path: Path
) -> None:
    assert asked(status, HF_HOME=str(tmp_path))[0] == HubVerdict(
        warning="the gateway's host has no folder org/model, so org/model is taken for a name on "
        f"the hub, which could not be asked for it ({reason}): the run fails if the hub has no "
        "such model"
    )


def test_without_the_hub_only_its_cache_has_models(tmp_path: Path) -> None:
    said, requests = asked(200, HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1")
    assert said.refusal.startswith("org/model: HF_HUB_OFFLINE is set, and the hub's cache")

    kept = tmp_path / "hub" / "models--org--model" / "snapshots" / "a1"
    kept.mkdir(parents=True)
    (kept / "config.json").write_text("{}")
    cached, more = asked(404, HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1")

    assert cached == HubVerdict()
    assert requests + more == []


def test_a_redirect_to_another_host_gets_no_token(tmp_path: Path) -> None:
    requests = []

    def hub(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        elsewhere = {"Location": "http://elsewhere.example/"}
        return httpx.Response(200 if len(requests) > 1 else 307, headers=elsewhere)

    async def ask() -> HubVerdict:
        async with httpx.AsyncClient(transport=httpx.MockTransport(hub)) as http:
            return await asked_of_hub(
                http, "org/model", {"HF_HOME": str(tmp_path), "HF_TOKEN": "t"}
            )

    assert asyncio.run(ask()) == HubVerdict()
    assert [request.headers.get("Authorization") for request in requests] == ["Bearer t", None]
