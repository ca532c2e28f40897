"""The gateway that the fuzzer asks, over plain sockets, and what has to be there for requests that
work."""

import http.client
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tests.security.fuzz_values import BOUNDARY


@dataclass
class Sent:
    """One request as bytes."""

    what: str
    method: str
    path: bytes
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""


@dataclass
class Target:
    """A gateway, and what it holds for requests that work."""

    url: str
    key: str
    """Value of the Authorization header."""
    dataset: str = "fuzzed"
    run: str = ""
    """A run that has ended."""
    config: dict[str, Any] = field(default_factory=dict)

    def ask(self, sent: Sent, seconds: float = 30.0) -> tuple[int, bytes]:
        """The status and the first 64 KiB of the answer; 0 without an answer. Bytes are sent as
        they are: no client library lets all of this through."""
        address = urlsplit(self.url)
        headers = {b"Host": address.netloc.encode(), b"Authorization": self.key.encode()}
        headers |= {b"Content-Length": str(len(sent.body)).encode(), b"Connection": b"close"}
        lines = [b"%s: %s" % pair for pair in (headers | sent.headers).items()]
        head = b"%s %s HTTP/1.1\r\n%s\r\n\r\n" % (
            sent.method.encode(), sent.path, b"\r\n".join(lines)
        )  # fmt: skip
        answer = b""
        with socket.create_connection((address.hostname, address.port), timeout=seconds) as link:
            try:
                link.sendall(head + sent.body)
            except OSError:
                answer = b""  # Refused before all was sent; the answer is there to be read.
            try:
                while len(answer) < 1 << 16 and (part := link.recv(1 << 16)):
                    answer += part
                    if b"text/event-stream" in answer and b"\r\n\r\n" in answer:
                        break
            except OSError:
                pass
        answer = answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
        status = answer[9:12]
        return (int(status) if status.isdigit() else 0), answer.partition(b"\r\n\r\n")[2]

    def json(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """A request that should work: its status and the JSON of its answer."""
        content = b"" if body is None else json.dumps(body).encode()
        headers = {b"Content-Type": b"application/json"} if body is not None else {}
        address = urlsplit(self.url)
        link = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
        given = {k.decode(): v.decode() for k, v in headers.items()} | {"Authorization": self.key}
        link.request(method, path, content, given)
        answer = link.getresponse()
        text = answer.read()
        link.close()
        return answer.status, json.loads(text) if text else None


def uploaded(target: Target, name: str) -> None:
    """Upload sums as the dataset `name`."""
    rows = b"".join(b'{"prompt": "%d+1", "answer": "%d"}\n' % (n, n + 1) for n in range(40))
    form = multipart({"name": name.encode()}, rows)
    status, body = target.ask(
        Sent("prepare", "POST", b"/v1/datasets", {b"Content-Type": form[0]}, form[1])
    )
    assert status in (200, 201), body


def prepared(target: Target, model: str) -> dict[str, Any]:
    """Upload a dataset, submit a run and take its whole config. Returns the OpenAPI document."""
    uploaded(target, target.dataset)
    config = {"model": {"path": model}, "data": {"dataset": target.dataset}}
    status, run = target.json("POST", "/v1/runs", {"recipe": "grpo", "config": config})
    assert status == 201, run
    target.config, target.run = run["config"], run["id"]
    target.json("POST", f"/v1/runs/{run['id']}/cancel")
    status, document = target.json("GET", "/openapi.json")
    assert status == 200
    return dict(document)


def multipart(
    fields: Mapping[str, bytes], content: bytes, filename: bytes = b"a.jsonl"
) -> tuple[bytes, bytes]:
    """(content type, body) of an upload."""
    parts = [
        b'--%s\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n'
        % (BOUNDARY.encode(), name.encode(), value)
        for name, value in fields.items()
    ]
    parts.append(
        b'--%s\r\nContent-Disposition: form-data; name="file"; filename="%s"\r\n\r\n%s\r\n'
        b"--%s--\r\n" % (BOUNDARY.encode(), filename, content, BOUNDARY.encode())
    )
    return f"multipart/form-data; boundary={BOUNDARY}".encode(), b"".join(parts)
