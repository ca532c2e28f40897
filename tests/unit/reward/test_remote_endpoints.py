"""An endpoint's reply is bounded before it is unpacked."""

import gzip

import httpx
import pytest

from reward import remote_endpoints
from reward.remote_endpoints import Endpoint, EndpointError

BOMB = gzip.compress(gzip.compress(bytes(64 << 20)))


async def test_compressed_replies_are_refused_unread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers["accept-encoding"])
        stream = httpx.ByteStream(BOMB)
        return httpx.Response(200, headers={"content-encoding": "gzip, gzip"}, stream=stream)

    def transport(**_: object) -> httpx.MockTransport:
        return httpx.MockTransport(answer)

    monkeypatch.setattr(httpx, "AsyncHTTPTransport", transport)
    async with remote_endpoints.client() as http:
        with pytest.raises(EndpointError, match="compressed"):
            await Endpoint("judge", "http://judge").ask(http, "", {}, 3)
    assert asked == ["identity"]
