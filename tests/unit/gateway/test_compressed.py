"""Which answers are compressed."""

import re

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from services.gateway.app import LARGE
from services.http import Compressed

TEXT = "0.125, " * 10_000


async def text(_: object) -> PlainTextResponse:
    return PlainTextResponse(TEXT)


async def stream(_: object) -> StreamingResponse:
    return StreamingResponse(iter(["one", "two"]), media_type="application/x-tar")


def test_only_chosen_paths_are_compressed_and_only_for_clients_that_take_it() -> None:
    app = Starlette(routes=[Route("/large", text), Route("/other", text), Route("/tar", stream)])
    app.add_middleware(Compressed, paths=re.compile("/large"))
    client = TestClient(app)

    large = client.get("/large")
    assert (large.text, large.headers["content-encoding"]) == (TEXT, "gzip")
    assert int(large.headers["content-length"]) < len(TEXT) / 20
    assert large.headers["vary"] == "Accept-Encoding"
    for path, accepted in (("/large", "identity"), ("/other", "gzip"), ("/tar", "gzip")):
        plain = client.get(path, headers={"accept-encoding": accepted})
        assert "content-encoding" not in plain.headers, path


def test_series_and_the_guide_are_compressed_and_no_stream_or_key_is() -> None:
    compressed = ("/v1/series", "/guide/search.json", "/openapi.json")
    assert all(map(LARGE.fullmatch, compressed))
    others = ("/v1/stream", "/v1/keys", "/v1/runs/r/events", "/v1/chat/completions")
    assert not any(map(LARGE.fullmatch, others))
