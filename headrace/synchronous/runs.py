"""Runs. `make client` makes this file (deploy/client_code.py)."""
# ruff: noqa: UP028

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, Literal
from warnings import warn

from pydantic import Field, TypeAdapter, ValidationError

from headrace import operations
from headrace.archive import Unpacking
from headrace.chart import Chart
from headrace.errors import (
    BadAnswer,
    Conflict,
    HeadraceError,
    TooManyRequests,
    Unreachable,
)
from headrace.models import (
    Checkpoint,
    LogLine,
    RunEvent,
    RunPatch,
    RunRecord,
    RunSummary,
    SampledAnswer,
    Series,
)
from headrace.report import Report
from headrace.rows import Progress, Rows, as_html, submission
from headrace.synchronous.connection import Connection
from headrace.synchronous.sessions import Group, Session
from headrace.synchronous.waiting import FINAL, until_over

_run_event: TypeAdapter[RunEvent] = TypeAdapter(Annotated[RunEvent, Field(discriminator="kind")])
LogLevel = Literal["debug", "info", "warning", "error"]
PATIENCE = 60.0
"""Seconds without an answer until following events gives up."""


class Run:
    """A run. `record` has what the gateway told last of it; `refresh` asks again."""

    def __init__(self, client: Connection, record: RunRecord | RunSummary) -> None:
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
        request = operations.runs_get(run=self.id)
        for record in until_over(self._client, request, "run", timeout):
            self.record = record
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

    def fork(
        self,
        step: int | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        name: str | None = None,
        tags: Sequence[str] | None = None,
        notes: str | None = None,
        pool: str | None = None,
        priority: int = 0,
    ) -> "Run":
        """Submit a run that goes on from the checkpoint of `step` (default: the newest one), with
        changes of the config. This run stays as it is."""
        body = {
            "step": step,
            "config": dict(config or {}),
            "name": name,
            "tags": None if tags is None else list(tags),
            "notes": notes,
            "pool": pool,
            "priority": priority,
        }
        given = {key: value for key, value in body.items() if value is not None}
        answer = self._client.send(operations.runs_fork(run=self.id, body=given))
        return Run(self._client, _record(answer))

    def delete(self) -> None:
        """Delete the run, which must be over, with its files."""
        self._client.send(operations.runs_delete(run=self.id))

    def events(self, after: str | None = None) -> Iterator[RunEvent]:
        """Yield the events of the run, or those after the event `after`, until the run is over.
        A broken connection is opened again after the last event."""
        heard, pause = monotonic(), 0.25
        while True:
            try:
                request = operations.run_events_follow(run=self.id, last_event_id=after)
                for data in self._client.stream(request):
                    event = _event(self.id, data)
                    if event is None:
                        continue
                    after, heard, pause = event.id, monotonic(), 0.25
                    yield event
                if (self.refresh()).state in FINAL:
                    return
            except Unreachable as error:
                if monotonic() - heard > PATIENCE:
                    raise error
            time.sleep(pause)
            pause = min(5.0, pause * 2)

    def logs(
        self,
        *,
        process: str | None = None,
        level: LogLevel = "debug",
        newest: int | None = None,
        follow: bool = False,
    ) -> Iterator[LogLine]:
        """Yield what the processes of the run logged, oldest first. `process`: only learner,
        rollout, vllm, gateway or reward, or one of these such as learner/0. `level`: only this one
        and above. `newest`: begin with so many of the newest lines. `follow`: go on as lines come,
        until the run is over."""
        cursor = None
        while True:
            is_last = not follow or (self.refresh()).state in FINAL
            request = operations.run_logs_list(
                run=self.id,
                process=process,
                level=level,
                newest=None if cursor else newest,
                limit=1000,
                cursor=cursor,
            )
            page = self._client.send(request)
            for line in page.logs:
                yield line
            cursor = page.later
            if page.next is None:
                if is_last:
                    return
                time.sleep(1.0)

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

    def pin(self, step: int) -> Checkpoint:
        """Keep the checkpoint of `step` as long as the run exists."""
        return self._client.send(operations.run_checkpoints_pin(run=self.id, step=step))

    def unpin(self, step: int) -> Checkpoint:
        """Let the checkpoint of `step` go when a newer one takes its place."""
        return self._client.send(operations.run_checkpoints_unpin(run=self.id, step=step))

    def download(
        self,
        folder: str | Path,
        step: int | None = None,
        *,
        progress: Progress | None = None,
    ) -> Path:
        """Download the checkpoint of `step` (default: the newest one) into a new folder in
        `folder`, which is returned. A download that breaks leaves nothing. `progress` is called
        with the bytes that have arrived and those in all."""
        if step is None:
            checkpoints = self.checkpoints()
            if not checkpoints:
                raise HeadraceError(f"run {self.name} ({self.id}) has no checkpoint yet")
            step = checkpoints[0].step
        request = operations.run_checkpoints_download(run=self.id, step=step)
        with Unpacking(Path(folder)) as unpacking:
            self._client.unpack(request, unpacking, progress)
        return unpacking.folder

    def plot(self, names: Iterable[str] | str | None = None, *, x: str = "step") -> Chart:
        """Return curves of metrics, which a notebook shows; `chart.save(file)` writes an SVG.
        `names`: by default the reward, or the loss of a supervised run. `x`: step, time, tokens
        or samples."""
        usual = "reward/mean" if self.record.kind == "rl" else "train/loss"
        curves = self.series(names or usual, points=300, x=x)
        return Chart(self.name, x, curves)

    def report(self, against: str | None = None) -> Report:
        """Return the report of the run: an HTML page as text, which a notebook shows;
        `report.save(path)` writes it to a file or into a folder. `against`: another run to compare
        it with. The report of a run that goes on shows how it stands now."""
        request = operations.run_reports_get(run=self.id, against=against)
        text = self._client.send(request)
        return Report(text)

    def group(
        self,
        prompt: str | Sequence[Mapping[str, Any]] | None = None,
        *,
        answer: Any = None,
        columns: Mapping[str, Any] | None = None,
        name: str = "",
    ) -> Group:
        """Lease a group of sessions in a run with `rollout.episode: sessions`: for the next row of
        its dataset, or for `prompt`. A `name` of the prompt makes the request safe to repeat.
        Raises TooManyRequests while the run takes no group, and Conflict when it is over."""
        request = operations.groups_lease(run=self.id)
        if prompt is not None:
            body = {
                "prompt": prompt,
                "answer": answer,
                "columns": dict(columns or {}),
                "name": name,
            }
            request = operations.groups_create(run=self.id, body=body)
            request = replace(request, is_repeatable=bool(name))
        return Group(self._client, self.id, self._client.send(request))

    def groups(self) -> Iterator[Group]:
        """Lease group after group until the run takes no more. Waits while it takes none for the
        moment."""
        while True:
            try:
                group = self.group()
            except TooManyRequests:
                time.sleep(1.0)
                continue
            except Conflict:
                if (self.refresh()).state in (*FINAL, "cancelling"):
                    return
                raise
            yield group

    def session(self, prompt_key: str = "", *, name: str = "") -> Session:
        """Open a session for a conversation of an application, in a run with `data.source:
        sessions`. `prompt_key`: the kind of prompt, whose rewards are compared. A `name` of the
        conversation makes the request safe to repeat."""
        body = {"prompt_key": prompt_key, "name": name}
        request = operations.sessions_create(run=self.id, body=body)
        request = replace(request, is_repeatable=bool(name))
        opened = self._client.send(request)
        return Session(self._client, opened)

    def __repr__(self) -> str:
        return f"<Run {self.id} {self.name!r}: {self.state}, step {self.record.step}>"

    def _repr_html_(self) -> str:
        return as_html(self.record, self._client.url)


class Runs:
    """The runs of a gateway."""

    def __init__(self, client: Connection) -> None:
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
        return Run(self._client, _record(answer))

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


def _record(answer: object) -> RunRecord:
    if not isinstance(answer, RunRecord):
        raise BadAnswer("the gateway did not answer with a run")
    return answer
