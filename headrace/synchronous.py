"""The client, which waits for each answer. `make client` makes this file (deploy/client_code.py)."""
# ruff: noqa: E501, UP028

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, TypeVar
from warnings import warn

import httpx
from pydantic import Field, TypeAdapter, ValidationError

from headrace import login, operations
from headrace.errors import BadAnswer, RunFailed, Unreachable, WaitTimeout
from headrace.models import (
    Checkpoint,
    DatasetRecord,
    OpenAIAnswer,
    RunEvent,
    RunPatch,
    RunRecord,
    RunSummary,
    SampledAnswer,
    Series,
    Uploaded,
    WorkerRecord,
)
from headrace.request import EventStream, Request, fields_of
from headrace.rows import (
    LARGE_BYTES,
    PART_BYTES,
    Progress,
    Rows,
    as_html,
    file_of_rows,
    files_of,
    fingerprint,
    named_or_rows,
    paths_in,
    submission,
)

T = TypeVar("T")
_run_event: TypeAdapter[RunEvent] = TypeAdapter(Annotated[RunEvent, Field(discriminator="kind")])
FINAL = ("succeeded", "failed", "cancelled")
CONNECT, QUIET, PATIENCE = 10.0, 45.0, 60.0
"""Seconds for a connection; without a ping until a stream counts as broken (pings come every 15);
without an answer until following events gives up."""


class Client:
    """A gateway. `url` and `api_key` default to those of the command line: HEADRACE_GATEWAY_URL,
    HEADRACE_API_KEY, HEADRACE_API_KEY_FILE, and the key in the data folder HEADRACE_DATA."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = 600.0,
        retries: int = 5,
    ) -> None:
        """`timeout`: seconds that the gateway may take to answer. `retries`: how often a request
        is sent again after a broken connection, 429, 502, 503 or 504."""
        self.url = login.address(url)
        key = api_key or login.api_key(self.url)
        self._retries = retries
        self._http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(timeout, connect=CONNECT),
            # A proxy of the environment has no business between a machine and itself.
            trust_env=not login.is_local(self.url),
            # Reading the certificates takes 80 ms: skip it for plain http.
            verify=self.url.startswith("https:"),
        )
        self.runs = Runs(self)
        self.datasets = Datasets(self)
        self.workers = Workers(self)

    def send(self, request: Request[T]) -> T:
        """Send a request of `headrace.operations` and return its answer. Raises HeadraceError."""
        if request.answer is EventStream:
            raise TypeError(f"{request.template} does not end: use run.events()")
        headers = request.headers()
        for attempt in count(1):
            response = None
            try:
                with ExitStack() as opened:
                    arguments = request.arguments(opened)
                    response = self._http.request(headers=headers, **arguments)
            except httpx.TransportError as error:
                broken = error
            except httpx.InvalidURL as error:
                raise Unreachable(f"{self.url!r} is not an address: {error}") from None
            pause = request.pause(attempt, response)
            # A request that was never sent may be sent again, whatever it is.
            if response is None and isinstance(broken, httpx.ConnectError | httpx.ConnectTimeout):
                pause = pause or 0.5
            if pause is None or attempt > self._retries:
                break
            time.sleep(pause)
        if response is None:
            raise Unreachable(
                f"no answer from {self.url} after {attempt} attempts: "
                f"{str(broken) or type(broken).__name__}"
            ) from broken
        return request.parsed(response)

    def pages(self, operation: Callable[..., Request[Any]], **given: Any) -> Iterator[Any]:
        """Yield the pages of an operation that lists things, e.g. `operations.workers_list`."""
        while True:
            page = self.send(operation(**given))
            yield page
            if page.next is None:
                return
            given["cursor"] = page.next

    def chat(
        self, model: str, messages: str | Sequence[Mapping[str, Any]], **options: Any
    ) -> OpenAIAnswer:
        """Ask the policy of a run: `model` is `RUN` or `RUN@latest`. A text is the turn of a user.
        `options` are those of OpenAI's API: max_tokens, temperature, …"""
        if options.get("stream"):
            raise ValueError("chat does not stream: use a client of OpenAI's API for that")
        turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        body = {"model": model, "messages": [dict(turn) for turn in turns], **options}
        return self.send(operations.chat_completions_create(body=body))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _events(self, run: str, after: str | None) -> Iterator[RunEvent]:
        """Yield events until the stream ends. Raises HeadraceError."""
        request = operations.run_events_follow(run=run, last_event_id=after)
        timeout = httpx.Timeout(CONNECT, read=QUIET)
        with ExitStack() as opened:
            arguments = request.arguments(opened)
        try:
            with self._http.stream(
                headers=request.headers(), timeout=timeout, **arguments
            ) as response:
                if response.is_error:
                    response.read()
                    request.parsed(response)
                lines: list[str] = []
                for line in response.iter_lines():
                    if line:
                        lines.append(line)
                        continue
                    fields, lines = fields_of(lines), []
                    event = _event(run, fields["data"]) if "data" in fields else None
                    if event is not None:
                        yield event
        except httpx.TransportError as error:
            raise Unreachable(f"lost the connection to {self.url}: {error}") from error


class Run:
    """A run. `record` has what the gateway told last of it; `refresh` asks again."""

    def __init__(self, client: Client, record: RunRecord | RunSummary) -> None:
        self._client = client
        self.record = record

    @property
    def id(self) -> str:
        """Its id, 8 hex digits."""
        return self.record.id

    @property
    def name(self) -> str:
        """Its name."""
        return self.record.name

    @property
    def state(self) -> str:
        """Its state, e.g. `running`. The final ones are succeeded, failed and cancelled."""
        return self.record.state

    @property
    def warnings(self) -> list[str]:
        """What the gateway found odd when the run was submitted."""
        return list(getattr(self.record, "warnings", None) or ())

    def refresh(self) -> "Run":
        """Load the record again."""
        self.record = self._client.send(operations.runs_get(run=self.id))
        return self

    def wait(self, timeout: float | None = None) -> "Run":
        """Wait until the run is over. Raises RunFailed if it failed, and WaitTimeout after
        `timeout` seconds; the run itself goes on then."""
        start, pause = monotonic(), 0.25
        while (self.refresh()).state not in FINAL:
            rest = float("inf") if timeout is None else start + timeout - monotonic()
            if rest <= 0:
                raise WaitTimeout(
                    f"run {self.name} ({self.id}) is {self.state} after {timeout:g} s; it goes on"
                )
            pause = min(5.0, pause * 1.5)
            time.sleep(min(pause, rest))
        if self.state == "failed":
            raise RunFailed(f"run {self.name} ({self.id}) failed: {self.record.reason}")
        return self

    def cancel(self, *, now: bool = False) -> "Run":
        """Cancel the run, which keeps what it has trained. `now`: do not end its step first."""
        answer = self._client.send(operations.runs_cancel(run=self.id, now=now))
        self.record = RunRecord.model_validate(answer.model_dump())
        return self

    def pause(self) -> "Run":
        """Let the run stand still after its present step, until `resume`."""
        self.record = self._client.send(operations.runs_pause(run=self.id))
        return self

    def resume(self) -> "Run":
        """Let the paused run go on, as the same run."""
        self.record = self._client.send(operations.runs_resume(run=self.id))
        return self

    def update(self, **fields: Any) -> "Run":
        """Change the run: name, tags, notes, priority, max_steps, max_staleness,
        evaluation_every, checkpoint_every, lr."""
        if unknown := fields.keys() - RunPatch.model_fields.keys():
            raise TypeError(f"a run has no {', '.join(sorted(unknown))} to change")
        self.record = self._client.send(operations.runs_update(run=self.id, body=fields))
        return self

    def delete(self) -> None:
        """Delete the run, which must be over, with its files."""
        self._client.send(operations.runs_delete(run=self.id))

    def events(self, after: str | None = None) -> Iterator[RunEvent]:
        """Yield the events of the run, or those after the event `after`, until the run is over.
        A broken connection is opened again after the last event."""
        heard, pause = monotonic(), 0.25
        while True:
            try:
                for event in self._client._events(self.id, after):
                    after, heard, pause = event.id, monotonic(), 0.25
                    yield event
                if (self.refresh()).state in FINAL:
                    return
            except Unreachable as error:
                if monotonic() - heard > PATIENCE:
                    raise error
            time.sleep(pause)
            pause = min(5.0, pause * 2)

    def metrics(self, names: Iterable[str] | str | None = None, after_step: int = -1) -> Rows:
        """Return a row for each step, with the metrics `names` (default: all)."""
        wanted = [names] if isinstance(names, str) else None if names is None else list(names)
        pages = self._client.pages(
            operations.run_metrics_list, run=self.id, name=wanted, after_step=after_step
        )
        return Rows([row for page in pages for row in page.metrics])

    def series(
        self, names: Iterable[str] | str, *, points: int = 1000, x: str = "step"
    ) -> list[Series]:
        """Return curves of at most `points` places. `x`: step, time, tokens or samples."""
        wanted = [names] if isinstance(names, str) else list(names)
        request = operations.series_get(runs=[self.id], names=wanted, points=points, x=x)  # type: ignore[arg-type]
        return (self._client.send(request)).series

    def rollouts(self, **filters: Any) -> Rows:
        """Return kept answers, newest step first. `filters`: step, min_reward, max_reward, status,
        row, dataset, group, min_tokens, max_tokens, text."""
        pages = self._client.pages(operations.rollouts_list, run=self.id, **filters)
        return Rows([each.model_dump() for page in pages for each in page.rollouts])

    def samples(self, step: int | None = None) -> list[SampledAnswer]:
        """Return up to four answers of each step."""
        pages = self._client.pages(operations.run_samples_list, run=self.id, step=step)
        return [each for page in pages for each in page.samples]

    def checkpoints(self) -> list[Checkpoint]:
        """Return the checkpoints, newest first."""
        pages = self._client.pages(operations.run_checkpoints_list, run=self.id)
        return [each for page in pages for each in page.checkpoints]

    def __repr__(self) -> str:
        return f"<Run {self.id} {self.name!r}: {self.state}, step {self.record.step}>"

    def _repr_html_(self) -> str:
        return as_html(self.record, self._client.url)


class Runs:
    """The runs of a gateway."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def submit(
        self,
        recipe: str | None = None,
        *,
        model: str | None = None,
        dataset: str | None = None,
        config: Mapping[str, Any] | None = None,
        name: str | None = None,
        tags: Sequence[str] | None = None,
        notes: str | None = None,
        pool: str | None = None,
        priority: int | None = None,
        resume_from: str | None = None,
    ) -> Run:
        """Submit a run. `model` and `dataset` are the keys `model.path` and `data.dataset` of the
        config; `config` has any others, over those of the recipe. Raises Invalid, whose `problems`
        name each wrong key."""
        body = submission(
            recipe,
            model,
            dataset,
            config,
            name=name,
            tags=None if tags is None else list(tags),
            notes=notes,
            pool=pool,
            priority=priority,
            resume_from=resume_from,
        )
        answer = self._client.send(operations.runs_create(body=body))
        if not isinstance(answer, RunRecord):
            raise BadAnswer("the gateway did not answer with a run")
        return Run(self._client, answer)

    def get(self, run: str) -> Run:
        """Return a run by its id, the beginning of its id, or a name that no other run has."""
        record = self._client.send(operations.runs_get(run=run))
        return Run(self._client, record)

    def list(self, **filters: Any) -> Iterator[Run]:
        """Yield runs, newest first, page after page. `filters`: q, state, pool, name, tag, recipe,
        model, dataset; `limit` is the size of a page."""
        for page in self._client.pages(operations.runs_list, **filters):
            for record in page.runs:
                yield Run(self._client, record)


class Datasets:
    """The datasets of a gateway."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def upload(
        self,
        data: str | Path | Sequence[str | Path] | Iterable[Mapping[str, Any]],
        *,
        name: str | None = None,
        mapping: str | Mapping[str, Any] | None = None,
        verifier: str | None = None,
        progress: Progress | None = None,
    ) -> Uploaded:
        """Upload files or rows. `data`: a file (JSON lines, CSV, Parquet, tar), a folder of files,
        a pattern such as `train-*.parquet`, or a list of these, which become one dataset in this
        order; or rows. `mapping`: columns, or the name of a well-known file such as gsm8k.
        `progress` is called with the bytes that were sent and those in all. The same rows again
        change nothing. Large files are sent in parts: the same call goes on where another one
        stopped."""
        columns = mapping if mapping is None or isinstance(mapping, str) else json.dumps(mapping)
        form: dict[str, Any] = {"name": name, "mapping": columns, "verifier": verifier}
        named, rows = named_or_rows(data)
        if named:
            paths = paths_in(named)
            if sum(path.stat().st_size for path in paths) > LARGE_BYTES:
                form["upload"] = self.send_parts(paths, progress)
            else:
                form["files"] = files_of(paths, progress)
        else:
            form["files"] = file_of_rows(rows, name, progress)
        return self._client.send(operations.datasets_create(**form))

    def send_parts(self, paths: Sequence[Path], progress: Progress | None = None) -> list[str]:
        """Send files in parts, without the bytes that have arrived before. Return the ids of the
        uploads, which `operations.datasets_create` takes."""
        total, before, ids = sum(path.stat().st_size for path in paths), 0, []
        for path in paths:
            about = {"name": path.name, "bytes": path.stat().st_size}
            about["fingerprint"] = fingerprint(path)
            upload = self._client.send(operations.uploads_create(body=about))
            with path.open("rb") as file:
                while upload.received < upload.bytes:
                    file.seek(upload.received)
                    part = file.read(PART_BYTES)
                    if not part:
                        raise ValueError(f"{path} has become shorter while it was sent")
                    upload = self._client.send(
                        operations.uploads_put(
                            upload=upload.id, from_byte=upload.received, content=part
                        )
                    )
                    if progress is not None:
                        progress(before + upload.received, total)
            before += upload.bytes
            ids.append(upload.id)
        return ids

    def get(self, dataset: str) -> DatasetRecord:
        """Return a dataset by its name or id."""
        return self._client.send(operations.datasets_get(dataset=dataset))

    def list(self) -> Iterator[DatasetRecord]:
        """Yield the datasets, newest first."""
        for page in self._client.pages(operations.datasets_list):
            for record in page.datasets:
                yield record

    def delete(self, dataset: str) -> None:
        """Delete a dataset that no run needs."""
        self._client.send(operations.datasets_delete(dataset=dataset))


class Workers:
    """The rollout workers of a gateway."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def list(self, pool: str | None = None) -> Iterator[WorkerRecord]:
        """Yield the workers, or those of a pool."""
        for page in self._client.pages(operations.workers_list, pool=pool):
            for record in page.workers:
                yield record


def _event(run: str, data: str) -> RunEvent | None:
    """Return an event. Return None, with a warning, for a kind that this client does not know."""
    try:
        return _run_event.validate_python({"run": run, **json.loads(data)})
    except (TypeError, ValueError) as error:
        kinds = error.errors() if isinstance(error, ValidationError) else []
        if kinds and kinds[0]["type"] == "union_tag_invalid":
            warn(f"run {run} has an event that a newer headrace knows: {data[:200]}", stacklevel=2)
            return None
        raise BadAnswer(f"an event of run {run} cannot be read: {data[:200]}") from None
