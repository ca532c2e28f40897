"""The bucket for large payloads, and a store's answers for missing objects."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from obstore.store import S3Store

from services.payloads.objects import Objects, bucket
from services.payloads.places import PlaceAway


@pytest.mark.parametrize("allowed", ["true", "false"])
def test_a_store_without_tls_is_used_where_its_operator_allows_it(
    monkeypatch: pytest.MonkeyPatch, allowed: str
) -> None:
    monkeypatch.setenv("AWS_ALLOW_HTTP", allowed)
    store = bucket("s3://bucket/folder")
    assert isinstance(store, S3Store)
    options = store.client_options
    assert options is not None
    assert str(options["allow_http"]).lower() == allowed


class Missing(BaseHTTPRequestHandler):
    """Answers like S3 for a missing object or bucket."""

    def do_GET(self) -> None:
        code = "NoSuchKey" if self.path.startswith("/bucket/") else "NoSuchBucket"
        body = f"<?xml version='1.0'?>\n<Error><Code>{code}</Code></Error>".encode()
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_PUT = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Missing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }.items():
        monkeypatch.setenv(name, value)
    yield
    server.shutdown()
    server.server_close()


async def test_a_missing_object_is_gone_and_a_missing_bucket_is_an_error(
    store: None,
) -> None:
    name = "runs/r/payloads/1-0123456789abcdef.group"
    with pytest.raises(FileNotFoundError):
        await Objects(bucket("s3://bucket/folder")).read(name)
    elsewhere = Objects(bucket("s3://other/folder"))
    says = "HEADRACE_PAYLOADS_URL names a bucket that does not exist"
    for request in (elsewhere.read(name), elsewhere.write(name, b"group")):
        with pytest.raises(PlaceAway, match=says) as raised:
            await request
        assert "\n" not in str(raised.value)
