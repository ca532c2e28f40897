"""Requests of the gateway to the reward service about verifiers."""

from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from services.gateway.routes.verifiers import delete
from services.gateway.settings import GatewaySettings


@pytest.mark.parametrize("name", ["short@2", "a?b=c", "a#b", "%2e%2e", "ä"])
async def test_a_name_of_a_verifier_stays_one_part_of_the_path(name: str) -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(204)

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        deps: Any = SimpleNamespace(http=client, settings=GatewaySettings())
        await delete(deps, name)
    (request,) = asked
    assert (request.url.path, request.url.query) == (f"/v1/verifiers/{name}", b"")
