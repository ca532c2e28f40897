"""Hostile requests for every parameter of every route.

Takes the routes from the gateway's OpenAPI document, and the keys of a run's config from a run that
it submits. Each case changes one thing of a request that works. It has failed if the answer is a
5xx or none, or if `GET /v1/runs` does not answer after it. `python -m tests.security.fuzz [CASES
[SEED]]` starts an installation with a scripted vLLM, and ends with a run that has to succeed there.
The defaults are 20,000 cases of seed 1, which take some minutes; exit code 1 if any has failed.
"""

import gzip
import json
import random
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

SURROGATE = b"\xed\xa0\x80"
BOUNDARY = "xFuZzx"
TEXTS: tuple[str, ...] = (
    *("", " ", "\0", "\x00a", "a\0b", "\ud800", "a\udfffb", "\ud800{prompt}=", "\udc00\ud800"),
    *("\u202eabc", "\u200f\u05d0", "\u0627\u0644", "\ufeff", "\uffff", "\U0010ffff", "e\u0301"),
    *("%s%n%x", "{0.__class__}", "{prompt}{answer}", "${HOME}", "$(id)", "%00", "%ff", "{", "}}"),
    *("../../../etc/passwd", "..", ".", "/etc/passwd", "a/../../b", "\\..\\..", "file:///etc"),
    *("a\r\nX-Injected: 1", "\n", "\r", "\x1b[31mred", "\x7f", "<script>", "'; --", '"', "`id`"),
    *(
        "NaN",
        "Infinity",
        "-1",
        "1e400",
        "9" * 5000,
        "0x10",
        "٣",
        "true",
        "null",
        "None",
        "[]",
        "{}",
    ),
    *("a" * 300, "a" * 5000, "é" * 70_000, "[::1", "[", "://", "run:", "run:\0", "run:../..", "*"),
    *("0-0", "0-99999999999999999999", "-", "1-", "1." + "0" * 400 + "-a", "+", "$", ">"),
)
BIG = ("a" * (1 << 20), "\u202e" * (1 << 19), "[" * (1 << 20))
TOKENS: tuple[bytes, ...] = (
    *(
        b"null",
        b"true",
        b"false",
        b"0",
        b"-1",
        b"1",
        b"-0.0",
        b"0.5",
        b"1e400",
        b"-1e400",
        b"1e-400",
    ),
    *(
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b"9" * 30,
        b"-" + b"9" * 30,
        b"9" * 5000,
        b"1" * 400 + b".5",
    ),
    *(b"9223372036854775807", b"9223372036854775808", b"2147483648", b"1.7976931348623157e308"),
    *(b"[]", b"{}", b'[""]', b"[null]", b"[[]]", b'{"":null}', b'{"a":1,"a":2}', b'{"type":"x"}'),
    *(b'{"type":null}', b'{"0":1}', b'{"-1":{}}', b'{"__class__":1}', b"[" * 60 + b"]" * 60),
    *(b"[" * 150 + b"]" * 150, b"[" * 190 + b"]" * 190, b'{"a":' * 190 + b"1" + b"}" * 190),
    *(
        b"[" * 300 + b"]" * 300,
        b"[" * 100_000,
        b'"\\ud800"',
        b'"\\udc00\\ud800"',
        b'"' + SURROGATE + b'"',
    ),
    *(
        b'{"\\ud800":1}',
        b'"\\u0000"',
        b"01",
        b"+1",
        b"'a'",
        b"a",
        b"",
        b'"\xff"',
        b"[" + b"1," * 9999 + b"1]",
    ),
)
HEADERS: tuple[tuple[bytes, bytes], ...] = (
    *(
        (b"Host", value)
        for value in (b"[::1", b"", b"a b", b"\xff", b"x" * 9000, b"a:b:c", b"[]:1")
    ),
    *((b"Origin", value) for value in (b"http://[::1", b"null", b"\xff", b"http://a", b"[")),
    *(
        (b"Cookie", value)
        for value in (b"headrace-key=\xff", b"=;=", b'a="', b"headrace-key=" + b"x" * 5000)
    ),
    *(
        (b"Authorization", value)
        for value in (b"Bearer", b"Bearer \xff", b"Basic x", b"bearer " + b"y" * 5000)
    ),
    *((b"If-None-Match", value) for value in (b"*", b"\xff", b'W/"a"', b'"' * 1000)),
    *(
        (b"Range", value)
        for value in (
            b"bytes=5-1",
            b"bytes=-",
            b"bytes=" + b"9" * 5000 + b"-",
            b"x=1",
            b"bytes=0-0,1-1",
        )
    ),
    *(
        (b"Last-Event-ID", value)
        for value in (b"0", b"x", b"9" * 5000, b"9" * 30 + b"-1", b"\xb2", b"")
    ),
    *((b"Expect", value) for value in (b"100-continue", b"nonsense")),
    *((b"Content-Encoding", value) for value in (b"gzip", b"zstd", b"\xff")),
    *((b"X-Forwarded-For", value) for value in (b"\xff", b"[", b"a" * 5000)),
    *((b"Accept", value) for value in (b"\xff", b"*/*;q=NaN", b"text/event-stream")),
)
CONTENT_TYPES: tuple[bytes, ...] = (
    *(
        b"",
        b"text/plain",
        b"application/json; charset=utf-16",
        b"application/x+json",
        b"application/xml",
    ),
    *(
        b"application/x-www-form-urlencoded",
        b"multipart/form-data",
        b"\xff",
        b"application/",
        b"json",
    ),
    *(
        b"multipart/form-data; boundary=",
        b"multipart/form-data; boundary=\xff",
        b"multipart/x; boundary=a",
    ),
    *(
        f"multipart/form-data; boundary={BOUNDARY}; charset={name}".encode()
        for name in (
            "utf-7",
            "utf-16",
            "idna",
            "punycode",
            "unicode_escape",
            "raw_unicode_escape",
            "rot13",
            "nul\0",
        )
    ),
)


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
        """Status and the first 64 KiB of the answer; 0 where nothing is answered. Bytes are sent as
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
        import http.client

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


def leaves(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The key path of everything in `value`, sections and lists included."""
    if at:
        yield at
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*at, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from leaves(inner, (*at, index))


def encoded(value: Any, at: tuple[str | int, ...], token: bytes) -> bytes:
    """`value` as JSON, with the bytes `token` at the key path `at`."""
    mark = "\u0001here\u0001"
    copy = json.loads(json.dumps(value))
    place = copy
    for key in at[:-1]:
        place = place[key]
    place[at[-1]] = mark
    return json.dumps(copy).encode().replace(json.dumps(mark).encode(), token)


class Fuzzer:
    """A seeded sequence of cases over one gateway."""

    def __init__(self, target: Target, document: dict[str, Any], seed: int) -> None:
        self._target, self._random = target, random.Random(seed)
        self._config_keys = list(leaves(target.config))
        self._operations = [
            (path, method.upper(), described)
            for path, operations in document["paths"].items()
            for method, described in operations.items()
        ]
        self._bodies: dict[tuple[str, str], Any] = {
            ("/v1/runs", "POST"): {
                "config": target.config,
                "name": "fuzz",
                "pool": "fuzz",
                "priority": 0,
                "resume_from": None,
            },
            ("/v1/prompts", "POST"): {
                "dataset": target.dataset,
                "prompts": [{"prompt": "1+1", "answer": "2", "columns": {"a": 1}}],
            },
            ("/v1/keys", "POST"): {"name": "fuzz"},
        }
        self.answers: Counter[int] = Counter()

    def run(self, cases: int, until: Callable[[], bool] = lambda: False) -> list[str]:
        """Up to `cases` cases; what failed, in words."""
        failed: list[str] = []
        for number in range(cases):
            if until():
                break
            sent = self._case(number)
            failed += self._check(sent)
        return failed

    def _check(self, sent: Sent) -> list[str]:
        status, body = self._target.ask(sent)
        self.answers[status] += 1
        said = f"{sent.what}: {sent.method} {sent.path[:200]!r} {sent.body[:200]!r}"
        failed = [f"{status} to {said}: {body[:300]!r}"] if status >= 500 or not status else []
        if len(body) >= 1 << 16 and status >= 400:
            failed.append(f"an error of {len(body)} bytes to {said}")
        listed, _ = self._target.json("GET", "/v1/runs?limit=5")
        if listed != 200:
            failed.append(f"GET /v1/runs answers {listed} after {said}")
        if status == 201 and sent.path.startswith(b"/v1/runs"):
            failed += self._removed(json.loads(body)["id"], said)
        return failed

    def _removed(self, run: str, said: str) -> list[str]:
        """A run that was accepted has to go, too."""
        codes = [
            self._target.json("POST", f"/v1/runs/{run}/cancel")[0],
            self._target.json("GET", f"/v1/runs/{run}/why")[0],
            self._target.json("DELETE", f"/v1/runs/{run}")[0],
        ]
        return [] if codes == [202, 200, 204] else [f"{codes} to cancel, why, delete after {said}"]

    def _case(self, number: int) -> Sent:
        path, method, described = self._operations[number // 2 % len(self._operations)]
        if number % 2:
            # Half of the cases go where most of the parameters are.
            path = self._random.choice(["/v1/runs"] * 4 + ["/v1/prompts", "/v1/datasets"])
            method = "POST"
        if (path, method) == ("/v1/datasets", "POST"):
            return self._upload()
        kinds = ["path", "query", "header", "body"]
        weights = [2 if "{" in path else 0, 2, 1, 6 if (path, method) in self._bodies else 1]
        kind = self._random.choices(kinds, weights)[0]
        sent = Sent(
            f"{kind} of {method} {path}",
            method,
            self._path(path, kind == "path" or method == "DELETE"),
        )
        if kind == "query":
            sent.path += b"?" + self._query(described)
        if (body := self._bodies.get((path, method))) is not None:
            sent.headers[b"Content-Type"] = b"application/json"
            sent.body = json.dumps(body).encode()
        if kind == "header":
            name, value = self._random.choice(HEADERS)
            sent.headers[name] = value
        if kind == "body":
            self._spoil(sent, body)
        return sent

    def _path(self, path: str, hostile: bool) -> bytes:
        parts = path.split("/")
        for place, part in enumerate(parts):
            if part.startswith("{"):
                whole = self._target.dataset if part == "{dataset}" else self._target.run
                parts[place] = self._in_url() if hostile else whole
        return "/".join(parts).encode()

    def _in_url(self) -> str:
        text = self._random.choice(TEXTS)[:2000]
        quoted = quote(text.encode("utf-8", "surrogatepass"), safe="")
        return self._random.choice([quoted, quoted, "%ED%A0%80", "%", "%zz", "%2e%2e%2f", "."])

    def _query(self, described: dict[str, Any]) -> bytes:
        names = [one["name"] for one in described.get("parameters", []) if one["in"] == "query"]
        name = self._random.choice([*names, "unknown", ""])
        return f"{name}={self._in_url()}&{name}={self._in_url()}".encode()

    def _token(self) -> bytes:
        kind = self._random.random()
        if kind < 0.5:
            return self._random.choice(TOKENS)
        if kind < 0.98:
            return json.dumps(self._random.choice(TEXTS)).encode()
        return json.dumps(self._random.choice(BIG)).encode()

    def _spoil(self, sent: Sent, body: Any) -> None:
        """Change one value of the body, or all of it, or how it is sent."""
        kind = self._random.random()
        if body is None or kind < 0.1:
            sent.body = self._token()
            sent.headers[b"Content-Type"] = b"application/json"
        elif kind < 0.8:
            places = list(leaves({k: v for k, v in body.items() if k != "config"}))
            config = [("config", *at) for at in self._config_keys] if "config" in body else []
            at = self._random.choice(config if config and kind < 0.65 else places)
            sent.body = encoded(body, at, self._token())
            sent.what += f" at {'.'.join(map(str, at))}"
        elif kind < 0.9:
            sent.headers[b"Content-Type"] = self._random.choice(CONTENT_TYPES)
        else:
            text = sent.body
            sent.body = self._random.choice(
                [
                    *(text.decode().encode("utf-16"), text.decode().encode("utf-32"), text[:-1]),
                    *(b"\xef\xbb\xbf" + text, gzip.compress(text), text + text, b"\0" + text),
                    *(text[:-1] + b',"config":{"a":NaN}}', b"[" + text + b"]", text + b"\xff"),
                    b" " * (1 << 20) + text,
                ]
            )

    def _upload(self) -> Sent:
        """An upload with one hostile part."""
        fields, filename = {"name": b"upload"}, b"a.jsonl"
        content = b'{"prompt": "1+1", "answer": "2"}\n'
        kind = self._random.randrange(6)
        hostile = self._random.choice(TEXTS).encode("utf-8", "surrogatepass")
        if kind == 0:
            fields[self._random.choice(["name", "format", "mapping", "other"])] = hostile
        elif kind == 1:
            fields["mapping"] = encoded({"prompt": "prompt"}, ("prompt",), self._token())
        elif kind == 2:
            filename = hostile.replace(b'"', b"").replace(b"\r", b"").replace(b"\n", b"")[:3000]
        elif kind == 3:
            at = self._random.choice(["prompt", "answer", "other"])
            row = {"prompt": "1+1", "answer": "2", "other": 1}
            content = encoded(row, (at,), self._token()) + b"\n"
        elif kind == 4:
            content = self._random.choice(
                [
                    *(
                        hostile,
                        b"PAR1" + hostile,
                        gzip.compress(content),
                        content.decode().encode("utf-16"),
                    ),
                    *(
                        b"prompt,answer\n" + hostile,
                        b'prompt\n"' + hostile,
                        b"\0" * 1000,
                        b"," * 50_000,
                    ),
                    *(b"PAR1" + self._random.randbytes(200) + b"PAR1", self._random.randbytes(300)),
                ]
            )
            filename = self._random.choice([b"a.jsonl", b"a.csv", b"a.parquet", b"a", b"a.json"])
        content_type, body = multipart(fields, content, filename)
        if kind == 5:
            content_type = self._random.choice(CONTENT_TYPES)
        return Sent("upload", "POST", b"/v1/datasets", {b"Content-Type": content_type}, body)


def main(cases: int, seed: int) -> int:
    """Fuzz an installation, then have it train a run. Returns the exit code."""
    from services.cli.client import Gateway
    from services.launch import Stack, UpOptions
    from services.runtime.api_key import authorization
    from tests.integration.installation.conftest import SCRIPTED, Installation

    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        options = UpOptions(
            data=data, port=0, reward_port=0, redis_port=0, environment=SCRIPTED, grace=5
        )
        with Stack(options) as stack:
            headers = authorization(stack.api_key) if stack.api_key else {}
            target = Target(stack.gateway_url, headers.get("Authorization", ""))
            began = time.monotonic()
            fuzzer = Fuzzer(target, prepared(target, "org/model"), seed)
            failed = fuzzer.run(cases)
            seconds = time.monotonic() - began
            sys.stdout.write(f"{cases} cases in {seconds:.0f} s: {dict(fuzzer.answers)}\n")
            uploaded(target, "after")
            one = Installation(stack, Gateway(stack.gateway_url, stack.check, stack.api_key))
            settings = {"training": {"max_steps": 3, "rows_per_step": 8}}
            run, _ = one.ended(one.submit("demo_sft", data={"dataset": "after"}, **settings))
            one.model = f"run:{run['id']}"
            run, _ = one.ended(one.submit(data={"dataset": "after"}))
            if run["state"] != "succeeded":
                failed.append(f"the run after it {run['state']}: {run['reason']}")
    sys.stdout.writelines(f"{line}\n" for line in failed)
    return int(bool(failed))


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    sys.exit(main(*[*given, *(20_000, 1)[len(given) :]]))
