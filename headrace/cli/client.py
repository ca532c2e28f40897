"""HTTP to the gateway: problem documents become `CliError`, a missing gateway says how to start
one, and events are a stream that survives a broken connection."""

import json
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from headrace import login
from headrace.cli.events import Event
from headrace.cli.output import FINAL, NO_GATEWAY, WRONG_USAGE, CliError
from headrace.commands import pasted
from headrace.errors import HeadraceError
from headrace.redaction import redacted
from headrace.variables import named_by, unusable, values

CONNECT = 10.0
ANSWER, WORK = 60.0, 600.0
"""Seconds that the gateway may take to answer a GET, and anything else: a large upload is converted
before it is answered."""
PATIENCE = 60.0
"""Seconds to keep trying for a gateway that went away while its events were followed."""
LOST_RETRIES = 5
"""Attempts to repeat a request whose answer was lost, over about ten seconds."""
PART_RETRIES = 12
"""Attempts to send a part of a file, over about four minutes."""
QUIET = 45.0
"""Seconds without even a ping after which a stream counts as broken; pings come every 15."""


class Gateway:
    """One gateway. Every method raises CliError."""

    def __init__(
        self,
        url: str | None = None,
        still_there: Callable[[], None] = lambda: None,
        key: str | None = None,
        variables: Mapping[str, str] | None = None,
        data: Path | None = None,
        answer: float | None = None,
    ) -> None:
        """`still_there` is called while waiting, and raises if waiting has become useless. `key`:
        the API key, by default the key of the settings and the data folder. `variables`: variables
        that lead commands in other terminals to this gateway, if the settings do not. `answer`:
        seconds to wait for the answer of a GET."""
        self._answer_seconds = answer or ANSWER
        self._still_there = still_there
        self._variables = variables
        named = values() | ({} if data is None else {"HEADRACE_DATA": str(data)})
        if problem := unusable(named):
            raise CliError(problem, code=WRONG_USAGE)
        given = login.address(url, named)
        self.url = redacted(given)
        """As it may be shown."""
        usual = url is None or given == login.address(None, named)
        self._option = [] if usual else ["--gateway", self.url]
        self._url_source = named_by("gateway_url") if url is None else None
        self._usual_url = url is None and self._url_source is None
        self._data_source = named_by("data") if data is None else None
        self._usual_data = data is None and self._data_source is None
        self._data, self._own_key = login.data_folder(named).absolute(), key is None
        # A proxy from the environment has no business between a machine and itself.
        with self._reachable():
            parsed = httpx.URL(given)
            self._given, self._key = given, key or _key(given, named)
            self._client = httpx.Client(
                base_url=given,
                trust_env=not login.is_local(given),
                # Reading the certificates takes 80 ms: skip it for plain http.
                verify=parsed.scheme == "https",
                headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
            )

    def command(self, *words: str) -> str:
        """Return a `headrace` command for a user to copy. It asks this gateway."""
        if self._variables:
            return pasted(self._variables, *words)
        end = words.index("--") if "--" in words else len(words)
        return shlex.join(["headrace", *words[:end], *self._option, *words[end:]])

    def get(self, path: str, **params: Any) -> Any:
        """Return the decoded answer of GET `path`."""
        given = {key: value for key, value in params.items() if value is not None}
        return self._request("GET", path, params=given)

    def text(self, path: str) -> str:
        """Return the answer of GET `path` as text."""
        return self._answer("GET", path).text

    def save(self, path: str, file: Path) -> int:
        """Write the answer of GET `path` to `file`, whole or not at all. Returns its bytes."""
        beside = file.with_name(f".{file.name}.part")
        timeout = httpx.Timeout(CONNECT, read=ANSWER)
        with self._reachable(), self._client.stream("GET", path, timeout=timeout) as response:
            if response.is_error:
                response.read()
                raise self._refusal(response)
            try:
                with beside.open("wb") as part:
                    for piece in response.iter_bytes():
                        part.write(piece)
                beside.replace(file)
            except OSError as error:
                raise CliError(f"{file} cannot be written: {error.strerror}") from None
            finally:
                beside.unlink(missing_ok=True)
        return file.stat().st_size

    def pages(self, path: str, items: str, **params: Any) -> Iterator[Any]:
        """Yield the entries that GET `path` lists under `items`, page after page."""
        while True:
            page = self.get(path, **params)
            yield from page[items]
            if page["next"] is None:
                return
            params["cursor"] = page["next"]

    def post(self, path: str, seconds: float = 0.0, **request: Any) -> Any:
        """POST `path`; `request` goes to httpx (json=, files=, data=). `seconds`: the time for the
        answer, if that is longer than usual."""
        return self._request("POST", path, seconds=seconds, **request)

    def send_parts(
        self, paths: Sequence[Path], progress: Callable[[int, int], object]
    ) -> list[str]:
        """Send large files in parts, without what has arrived before. A broken connection is opened
        again for some minutes. Returns the ids of the uploads."""
        from headrace import Client

        with Client(self._given, self._key, retries=PART_RETRIES) as client:
            try:
                return client.datasets.send_parts(paths, progress)
            except HeadraceError as error:
                raise CliError(
                    f"{error}. What has arrived is kept for a day: the same command goes "
                    "on from there"
                ) from None

    def download(self, path: str, target: Path) -> int:
        """Write the answer of GET `path` to `target`. Return its bytes. A broken download leaves
        no file at `target`."""
        self._still_there()
        part = target.with_name(f"{target.name}.part")
        timeout = httpx.Timeout(CONNECT, read=WORK)
        with self._reachable(WORK), self._client.stream("GET", path, timeout=timeout) as response:
            if response.is_error:
                response.read()
                raise self._refusal(response)
            try:
                with part.open("wb") as file:
                    for piece in response.iter_bytes():
                        file.write(piece)
                part.replace(target)
            finally:
                part.unlink(missing_ok=True)
        return target.stat().st_size

    def patch(self, path: str, **request: Any) -> Any:
        """PATCH `path`; `request` goes to httpx (json=)."""
        return self._request("PATCH", path, **request)

    def delete(self, path: str) -> None:
        """DELETE `path`."""
        self._request("DELETE", path)

    def login_link(self, path: str = "/") -> str:
        """Return a link to `path` of the page that logs a browser in, once and within an hour."""
        return f"{self.url}{path}#login={self.post('/v1/login')['token']}"

    def events(self, run: str, after: str | None = None) -> Iterator[Event | str]:
        """Yield the events of `run` until it is final. A string is a remark about the connection.
        After a lost connection, continues behind the last event. Gives up after PATIENCE seconds
        without an event or a ping."""
        lost: float | None = None
        while True:
            try:
                for event in self._stream(f"/v1/runs/{run}/events", after):
                    lost = None
                    self._still_there()
                    if event is None:
                        continue
                    after = event.id
                    yield event
                if self.get(f"/v1/runs/{run}")["state"] in FINAL:
                    return
            except (_Broken, Away) as error:
                lost = lost or time.monotonic()
                if time.monotonic() - lost > PATIENCE:
                    raise CliError(
                        f"nothing was heard for {PATIENCE:.0f} s ({error}); the run goes on "
                        f"without being watched. Watch again with: {self.command('watch', run)}",
                        code=NO_GATEWAY,
                    ) from None
                yield str(error)
                self._still_there()
                time.sleep(1)

    def parts(self, path: str, **request: Any) -> Iterator[Any]:
        """Yield the documents of a POST to `path` whose answer is a stream in the format of
        OpenAI's API."""
        self._still_there()
        timeout = httpx.Timeout(CONNECT, read=WORK, write=WORK)
        with (
            self._reachable(WORK),
            self._client.stream("POST", path, timeout=timeout, **request) as response,
        ):
            if response.is_error:
                response.read()
                raise self._refusal(response)
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    document = json.loads(line.removeprefix("data: "))
                    if "error" in document:
                        raise CliError(str(document["error"]["message"]))
                    yield document

    def _stream(self, path: str, after: str | None) -> Iterator[Event | None]:
        headers = {"Last-Event-ID": after} if after else {}
        try:
            with self._client.stream(
                "GET", path, headers=headers, timeout=httpx.Timeout(CONNECT, read=QUIET)
            ) as response:
                if response.status_code == httpx.codes.SERVICE_UNAVAILABLE:
                    response.read()
                    raise _Broken(_detail(response))
                if response.is_error:
                    response.read()
                    raise self._refusal(response)
                yield from _parsed(response.iter_lines())
        except httpx.TransportError:
            raise _Broken(f"lost the gateway at {self.url}; trying again") from None

    def _request(self, method: str, path: str, **request: Any) -> Any:
        response = self._answer(method, path, **request)
        if response.status_code == httpx.codes.NO_CONTENT:
            return None
        try:
            return response.json()
        except ValueError:
            raise CliError(f"{self.url} does not answer like a Headrace gateway") from None

    def _answer(
        self, method: str, path: str, seconds: float = 0.0, **request: Any
    ) -> httpx.Response:
        self._still_there()
        read = self._answer_seconds if method == "GET" else max(WORK, seconds)
        timeout = httpx.Timeout(min(CONNECT, read), read=read, write=WORK)
        response = self._repeated(method, path, read, timeout=timeout, **request)
        if response.is_error:
            raise self._refusal(response)
        return response

    def _repeated(self, method: str, path: str, read: float, **request: Any) -> httpx.Response:
        """Send a request, and send it again if its answer was lost. The gateway knows a write that
        it has done by its Idempotency-Key."""
        from headrace.request import CONFLICT, Request

        sent: Request[None] = Request(method, path, None, is_keyed=method != "GET")
        headers, attempt = sent.headers(), 0
        while True:
            attempt, response = attempt + 1, None
            is_last = attempt > LOST_RETRIES
            try:
                with self._reachable(read):
                    response = self._client.request(method, path, headers=headers, **request)
            except Away as error:
                # A gateway that was never there is told at once.
                if is_last or not (attempt > 1 or isinstance(error, AnswerLost)):
                    raise
            pause = sent.pause(attempt, response)
            # 409 with Retry-After: the earlier attempt is being answered.
            is_early = response is not None and response.status_code == CONFLICT
            if response is not None and (is_last or pause is None or not is_early):
                return response
            time.sleep(pause or 0)
            self._still_there()

    def _refusal(self, response: httpx.Response) -> CliError:
        error = _refusal(response)
        if response.status_code != httpx.codes.UNAUTHORIZED or not self._own_key:
            return error
        return CliError(f"{error.message}. {self._key_source()}", error.problems)

    def _key_source(self) -> str:
        """Say in a sentence which key this command shows the gateway, and what named the key."""
        for variable in ("api_key", "api_key_file"):
            if source := named_by(variable):
                return f"This command showed the key of {source}"
        file = self._data / login.API_KEY
        which = f"; {self._data_source} names the folder" if self._data_source else ""
        if self._usual_data:
            which = (
                ". HEADRACE_DATA, which names the gateway's data folder, is not set: paste the "
                "`export` lines that `headrace up` printed, or set HEADRACE_API_KEY"
            )
        if "Authorization" in self._client.headers:
            return f"This command showed the key in {file}{which}"
        if file.exists():
            return f"The key in {file} is shown to the gateway of HEADRACE_GATEWAY_URL alone"
        return f"This command found no key in {file}{which}"

    @contextmanager
    def _reachable(self, read: float = ANSWER) -> Iterator[None]:
        try:
            yield
        except httpx.ReadTimeout:
            raise Away(
                f"the gateway at {self.url} has not answered for {read:g} s: it hangs, or has too "
                "much to do; see its log, or try again"
            ) from None
        except (httpx.ConnectError, httpx.ConnectTimeout):
            named = f", which {self._url_source} names" if self._url_source else ""
            gone = self._data_source and not self._data.is_dir()
            folder = f"{self._data}, which is no folder"
            missing = f". {self._data_source} names {folder}" if gone else ""
            if self._usual_url:
                missing += (
                    ". If one runs, paste the `export` lines that `headrace up` or `headrace demo` "
                    "printed"
                )
            raise Away(
                f"no gateway at {self.url}{named}: start one with `headrace up`, or name another "
                f"with --gateway URL{missing}"
            ) from None
        except (httpx.InvalidURL, httpx.UnsupportedProtocol):
            raise CliError(f"{self.url!r} is not a URL like http://127.0.0.1:8000") from None
        except httpx.TransportError as error:
            raise AnswerLost(
                f"the gateway at {self.url} did not answer: {str(error) or type(error).__name__}"
            ) from None


def _key(url: str, variables: Mapping[str, str]) -> str | None:
    try:
        return login.api_key(url, variables)
    except HeadraceError as error:
        raise CliError(str(error), code=WRONG_USAGE) from None


class Away(CliError):
    """The gateway, or a part that it needs, is away. A retry may succeed."""

    def __init__(self, message: str, problems: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message, problems, NO_GATEWAY)
        self.retry_seconds: float | None = None
        """When a retry may succeed, if the gateway says so."""


class AnswerLost(Away):
    """The connection broke before the answer came: the request may have been done."""


class NotFound(CliError):
    """The gateway answered 404."""


class Later(CliError):
    """The gateway refuses for now (429). A retry after `seconds` may succeed."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


class _Broken(Exception):
    """The stream ended although the run has not."""


def _parsed(lines: Iterator[str]) -> Iterator[Event | None]:
    """Parse the lines of `text/event-stream` to events. None stands for a comment, which is a
    ping."""
    data: list[str] = []
    for line in lines:
        if line.startswith("data:"):
            data.append(line.removeprefix("data:").removeprefix(" "))
        elif line.startswith(":"):
            yield None
        elif not line and data:
            yield Event.parsed("\n".join(data))
            data = []


def _refusal(response: httpx.Response) -> CliError:
    try:
        problems = [(item["path"], item["message"]) for item in response.json()["problems"]]
    except (ValueError, KeyError, TypeError):
        problems = []
    # 502 and 504 come from whatever stands before the gateway; 503 says that Redis is away.
    away = response.status_code in (502, 503, 504)
    if away:
        error = Away(_detail(response), problems)
        error.retry_seconds = _seconds(response) if "Retry-After" in response.headers else None
        return error
    if response.status_code == httpx.codes.TOO_MANY_REQUESTS:
        return Later(_detail(response), _seconds(response))
    missing = response.status_code == httpx.codes.NOT_FOUND
    return (NotFound if missing else CliError)(_detail(response), problems)


def _seconds(response: httpx.Response) -> float:
    """Parse the header `Retry-After`."""
    try:
        return min(60.0, max(0.1, float(response.headers["Retry-After"])))
    except (KeyError, ValueError):
        return 1.0


def _detail(response: httpx.Response) -> str:
    try:
        body = json.loads(response.text)
        # Those of sessions have the format of OpenAI's API.
        return str(body["error"]["message"] if "error" in body else body["detail"])
    except (ValueError, KeyError, TypeError):
        return f"{response.url} answered {response.status_code} {response.reason_phrase}"
