"""Hostile requests for every parameter of every route.

The routes come from the gateway's OpenAPI document, the keys of a run's config from a run that it
submits. Each case changes one thing of a request that works. It has failed if the answer is a
5xx or none, or if `GET /v1/runs` does not answer after it. `python -m tests.security.fuzz [CASES
[SEED]]` starts an installation with a scripted vLLM, and ends with a run that has to succeed there.
The defaults are 20,000 cases of seed 1, which take some minutes; exit code 1 if any has failed.
"""

import gzip
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.security.fuzz_target import Sent, Target, multipart, prepared, uploaded
from tests.security.fuzz_values import BIG, CONTENT_TYPES, HEADERS, TEXTS, TOKENS

SCORING = (b"/v1/verifiers", b"/openai/v1/fine_tuning/alpha/graders")


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


def json_bodies(document: dict[str, Any]) -> dict[tuple[str, str], Any]:
    """(path, method) → the example of the route's JSON body."""
    bodies = {}
    for path, operations in document["paths"].items():
        for method, described in operations.items():
            content = described.get("requestBody", {}).get("content", {})
            if "application/json" in content:
                name = content["application/json"]["schema"]["$ref"].rpartition("/")[2]
                bodies[path, method.upper()] = document["components"]["schemas"][name]["example"]
    return bodies


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
        run = {
            "config": target.config,
            "name": "fuzz",
            "pool": "fuzz",
            "priority": 0,
            "resume_from": None,
        }
        row = {"prompt": "1+1", "answer": "2", "columns": {"a": 1}}
        self._bodies: dict[tuple[str, str], Any] = json_bodies(document) | {
            ("/v1/runs", "POST"): run,
            ("/v1/preview", "POST"): run | {"start": 0, "rows": 3},
            ("/v1/prompts", "POST"): {"dataset": target.dataset, "prompts": [row]},
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
        # No reward service runs here, so its routes answer 503.
        is_away = status == 503 and sent.path.startswith(SCORING)
        is_failed = (status >= 500 and not is_away) or not status
        failed = [f"{status} to {said}: {body[:300]!r}"] if is_failed else []
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
        """Change one value of the body, the whole body, or its encoding."""
        kind = self._random.random()
        if body is None or kind < 0.1:
            sent.body = self._token()
            sent.headers[b"Content-Type"] = b"application/json"
        elif kind < 0.8:
            whole = body.get("config") is self._target.config
            places = list(leaves({k: v for k, v in body.items() if k != "config" or not whole}))
            config = [("config", *at) for at in self._config_keys] if whole else []
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
    from headrace.cli.client import Gateway
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
