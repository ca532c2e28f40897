"""The Python client against a real gateway, also over a connection that breaks."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace import (
    AsyncClient,
    Client,
    Conflict,
    Forbidden,
    HeadraceError,
    Invalid,
    NotFound,
    Run,
    RunFailed,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    WaitTimeout,
    operations,
)
from headrace.synchronous import datasets
from services.contracts.logs import WrittenLine
from services.contracts.records import RunState, WorkerRecord
from services.store import Store
from tests.integration.gateway.servers import GatewayProcess, InStore
from tests.integration.gateway.test_continuing import write_checkpoint
from tests.integration.gateway.test_model_evaluations import write_evaluation
from tests.kept_rollouts import answer, keep

pytestmark = pytest.mark.usefixtures("sums")


@pytest.fixture
def client(gateway: GatewayProcess) -> Iterator[Client]:
    with Client(gateway.url, gateway.key) as client:
        yield client


@pytest.fixture
def run(client: Client, model: Path) -> Iterator[Run]:
    made = client.runs.submit(
        recipe="grpo",
        model=str(model),
        dataset="sums",
        config={"training": {"max_steps": 7}},
        name="from-python",
        tags=["a tag"],
    )
    yield made
    with suppress(Conflict):
        made.cancel()


class Breaking:
    """A proxy that closes a connection when its answer contains the next of `marks`. `passes`:
    whether the answer is passed on up to the mark."""

    def __init__(self, url: str, marks: list[bytes], passes: bool) -> None:
        self._target = httpx.URL(url)
        self.marks, self._passes = marks, passes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection((self._target.host, self._target.port))
            threading.Thread(target=self._copy, args=(near, far, False), daemon=True).start()
            threading.Thread(target=self._copy, args=(far, near, True), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        try:
            while data := source.recv(65536):
                if not (is_answer and self.marks and self.marks[0] in data):
                    target.sendall(data)
                    continue
                before, _, _ = data.partition(self.marks.pop(0))
                target.sendall(before if self._passes else b"")
                break
        except OSError:
            pass
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def breaking(gateway: GatewayProcess) -> Iterator[Any]:
    made: list[Breaking] = []

    def start(*marks: bytes, passes: bool = False) -> Client:
        proxy = Breaking(gateway.url, [*marks], passes)
        made.append(proxy)
        return Client(proxy.url, gateway.key)

    yield start
    for proxy in made:
        proxy.close()


def test_a_run_is_submitted_found_changed_and_cancelled(client: Client, run: Run) -> None:
    assert (run.state, run.name, run.record.max_steps) == ("queued", "from-python", 7)
    assert run.warnings[0].startswith("rewards: ")
    assert client.runs.get("from-python").id == run.id
    listed = [each.id for each in client.runs.list(tag=["a tag"], state=["queued"], limit=1)]
    assert run.id in listed

    run.update(max_steps=9, notes="longer")
    assert client.runs.get(run.id).record.notes == "longer"
    assert run.refresh().record.max_steps == 9
    with pytest.raises(TypeError, match="a run has no max_step to change"):
        run.update(max_step=9)

    with pytest.raises(WaitTimeout, match=r"from-python \(\w{8}\) is queued after 0.1 s"):
        run.wait(timeout=0.1)
    run.cancel()
    assert run.wait(timeout=10).state == "cancelled"


def test_a_model_is_evaluated_read_and_compared(
    client: Client, gateway: GatewayProcess, model: Path
) -> None:
    first, second = (
        client.evaluations.submit(str(model), "sums", verifier="math", rows=rows).run
        for rows in (2, 3)
    )
    assert [each.run.id for each in client.evaluations.list()][:2] == [second.id, first.id]
    assert client.evaluations.get(first.id).evaluation is None
    with pytest.raises(NotFound, match=f"run {first.id} has no evaluation yet"):
        client.evaluations.compare(first.id, second.id)

    write_evaluation(gateway.data, first.id, ["correct"] * 7 + ["wrong"])
    write_evaluation(gateway.data, second.id, ["wrong"] * 6 + ["correct"] * 2)
    wrong = client.evaluations.answers(first.id, verdict="wrong")
    assert [row.row for row in wrong] == [7]
    compared = client.evaluations.compare(first.id, second.id, limit=2)
    assert (compared.better, compared.worse, len(compared.comparison.changed)) == (6, 1, 2)
    for each in (first, second):
        client.runs.get(each.id).cancel()
    with pytest.raises(Invalid, match="sample"):
        client.evaluations.submit(str(model), "sums", sample=1)


def test_a_chain_is_submitted_found_and_cancelled(client: Client) -> None:
    steps = [
        {"name": name, "recipe": recipe, "config": {"data": {"dataset": "sums"}}}
        for name, recipe in (("sft", "demo_sft"), ("again", "demo_sft"))
    ]
    made = client.chains.submit(steps, name="python-chain", pool="nobody")
    assert [step.name for step in made.steps] == ["sft", "again"]
    assert client.chains.get("python-chain").id == made.id
    assert made.id in [each.id for each in client.chains.list()]
    with pytest.raises(WaitTimeout, match=r"chain python-chain \(chain-\w{8}\) is running"):
        client.chains.wait(made.id, timeout=0)
    client.chains.cancel(made.id, now=True)
    assert client.chains.wait(made.id, timeout=60).state == "cancelled"
    with pytest.raises(Invalid):
        client.chains.submit([{"name": "sft", "recipe": "none-such"}])


def test_a_key_is_made_listed_and_refused_once_it_is_revoked(
    client: Client, gateway: GatewayProcess
) -> None:
    made = client.keys.create("from-python", role="read")
    assert (made.id, "read") in [(each.id, each.role) for each in client.keys.list()]
    with Client(gateway.url, made.key) as reader:
        assert list(reader.runs.list(tag="no-such-tag")) == []
        with pytest.raises(Forbidden):
            reader.keys.create("another")
        client.keys.revoke(made.id)
        with pytest.raises(Unauthorized):
            list(reader.runs.list())
    assert made.id not in [each.id for each in client.keys.list()]


def test_a_list_is_read_page_after_page(client: Client) -> None:
    def names(limit: int) -> list[list[str]]:
        pages = client.pages(operations.recipes_list, limit=limit)
        return [[recipe.name for recipe in page.recipes] for page in pages]

    (whole,) = names(100)
    pages = names(2)
    assert len(pages) == (len(whole) + 1) // 2 > 1
    assert [name for page in pages for name in page] == whole


def test_a_failed_run_ends_the_wait_with_its_reason(run: Run, in_store: InStore) -> None:
    line = {"time": 1.0, "process": "vllm/w", "host": "h", "level": "error", "text": "no memory"}
    lines = [WrittenLine.model_validate(line | {"run": run.id})]
    in_store(lambda store: store.process_logs.add(lines))
    in_store(lambda store: store.runs.set_state(run.id, RunState.FAILED, "vLLM did not start"))
    assert [(each.process, each.text) for each in run.logs(follow=True, level="error")] == [
        ("vllm/w", "no memory")
    ]
    assert list(run.logs(process="learner")) == []
    with pytest.raises(RunFailed, match="vLLM did not start"):
        run.wait(timeout=10)


def test_a_refusal_names_each_key_and_each_kind_of_error_has_a_class(
    client: Client, gateway: GatewayProcess, model: Path
) -> None:
    with pytest.raises(Invalid) as refused:
        client.runs.submit("grpo", model=str(model), dataset="sums", config={"optimiser": {}})
    assert refused.value.status == 422
    (problem,) = refused.value.problems
    assert problem.path == "optimiser"
    assert f"\n  optimiser: {problem.message}" in str(refused.value)

    with pytest.raises(NotFound, match="no-such-run"):
        client.runs.get("no-such-run")
    with Client(gateway.url, "hr-not-the-key-of-this") as other, pytest.raises(Unauthorized):
        other.runs.get("no-such-run")
    with (
        Client("http://127.0.0.1:1", "k" * 20, retries=0) as nobody,
        pytest.raises(Unreachable, match=r"no answer from http://127.0.0.1:1 after 1 attempts"),
    ):
        nobody.runs.get("no-such-run")


def test_what_a_run_writes_comes_as_rows(
    client: Client, run: Run, gateway: GatewayProcess, tmp_path: Path
) -> None:
    folder = gateway.data / "runs" / run.id
    keep(folder, [answer(1, 10, 0, reward=0.0), answer(2, 11, 0), answer(2, 11, 1)])
    rows = [{"step": n, "reward/mean": n / 4, "loss": 1.0} for n in (1, 2)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    assert run.metrics("reward/mean") == [
        {"step": 1, "reward/mean": 0.25},
        {"step": 2, "reward/mean": 0.5},
    ]
    assert [row["loss"] for row in run.metrics(after_step=1)] == [1.0]
    (curve,) = run.series("reward/mean")
    assert (curve.x, curve.mean) == ([1.0, 2.0], [0.25, 0.5])

    assert [row["step"] for row in run.rollouts(limit=2)] == [2, 2, 1]
    (wrong,) = run.rollouts(max_reward=0.5)
    assert (wrong["reward"], wrong["status"]) == (0.0, "correct")
    assert [sample.step for sample in run.samples(step=1)] == [1]
    assert run.checkpoints() == []
    page = run.report().save(tmp_path).read_text()
    assert page.startswith("<!doctype html>")
    assert "from-python" in page


def test_checkpoints_are_pinned_downloaded_and_forked(
    client: Client, run: Run, gateway: GatewayProcess, in_store: InStore, tmp_path: Path
) -> None:
    with pytest.raises(HeadraceError, match=r"from-python \(\w{8}\) has no checkpoint yet"):
        run.download(tmp_path / "kept")
    names = [f"runs/{run.id}/checkpoints/step-{step:06d}-aaa" for step in (5, 10)]
    weights = bytes(range(256)) * 4096
    for name in names:
        write_checkpoint(gateway.data / name)
        (gateway.data / name / "model.safetensors").write_bytes(weights)

    assert run.pin(5).pinned
    assert [(each.step, each.pinned) for each in run.checkpoints()] == [(10, False), (5, True)]
    assert not run.unpin(5).pinned

    arrived: list[tuple[int, int]] = []
    newest = run.download(tmp_path / "kept", progress=lambda *done: arrived.append(done))
    assert newest == tmp_path / "kept" / f"{run.id}-step-000010-aaa"
    assert (newest / "model.safetensors").read_bytes() == weights
    assert arrived[-1][0] == arrived[-1][1] > len(weights)
    with pytest.raises(NotFound, match="it has those of steps: 10, 5"):
        run.download(tmp_path / "kept", step=7)
    assert [file.name for file in newest.parent.iterdir()] == [newest.name]

    async def train(store: Store) -> None:
        token = await store.runs.acquire(run.id, "aaa")
        fields = {"checkpoint": names[1], "committed_step": 10, "step": 11}
        await store.runs.update(run.id, token, fields)

    in_store(train)
    fork = run.fork(5, config={"training": {"max_steps": 20}}, name="branch")
    assert (fork.name, fork.record.max_steps, fork.record.resume_from) == ("branch", 20, run.id)
    assert [each.pinned for each in run.checkpoints()] == [False, True]
    fork.cancel()


def test_a_group_of_sessions_is_leased_rewarded_and_released(
    client: Client, gateway: GatewayProcess, model: Path, in_store: InStore
) -> None:
    run = client.runs.submit(
        "grpo", model=str(model), dataset="sums",
        config={"rollout": {"episode": "sessions"}, "evaluation": None},
    )  # fmt: skip
    with (
        Client(gateway.url, gateway.key, retries=0) as hasty,
        pytest.raises(TooManyRequests, match="the run is queued"),
    ):
        hasty.runs.get(run.id).group()

    async def works(store: Store) -> None:
        token = await store.runs.acquire(run.id, "a")
        await store.runs.set_state(run.id, "running", "", fencing_token=token)
        worker = WorkerRecord(id="w", pool="default", host="h", pid=1, state="idle")
        worker.run, worker.version, worker.lineage = run.id, 0, "a"
        await store.workers.heartbeat(worker)

    in_store(works)
    with run.group() as group:
        assert group.answer == str(eval(str(group.prompt)))
        first, second, *_ = group.sessions
        assert first.base_url == f"{client.url}/v1/sessions/{first.id}/v1"
        with first:
            assert first.reward({"format": 0.25, "right": 0.5}) == 0.75
            assert first.reward(7.0) == 0.75
        with pytest.raises(ZeroDivisionError), second:
            _ = 1 / 0
        # The first reward counts, and there was none.
        assert second.reward(1.0) is None
        assert client.reward(second.id, 1.0) is None
    own = run.group("7-5", answer="2", name="own")
    assert (own.prompt, own.answer) == ("7-5", "2")
    with pytest.raises(ZeroDivisionError), own:
        _ = 1 / 0
    with pytest.raises(Conflict):
        own.sessions[0].end()
    run.cancel(now=True)
    assert list(run.groups()) == []


def test_rows_and_files_are_uploaded_and_report_their_progress(
    client: Client, tmp_path: Path
) -> None:
    sent: list[tuple[int, int]] = []
    rows = [{"question": f"{n}-1", "answer": str(n - 1)} for n in range(2000)]
    made = client.datasets.upload(
        rows, name="differences", progress=lambda done, whole: sent.append((done, whole))
    )
    assert (made.name, made.rows, made.added) == ("differences", 2000, True)
    assert sent[-1][0] == sent[-1][1]
    assert sent == sorted(sent)

    file = tmp_path / "differences.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    again = client.datasets.upload(file)
    assert (again.id, again.added) == (made.id, False)
    assert "differences" in [each.name for each in client.datasets.list()]
    assert client.datasets.get("differences").rows == 2000
    client.datasets.delete("differences")
    assert "differences" not in [each.name for each in client.datasets.list()]


def test_several_files_and_a_folder_are_one_dataset_in_their_order(
    client: Client, tmp_path: Path
) -> None:
    for number in (10, 2):
        (tmp_path / f"part-{number}.csv").write_text(f"question,answer\n{number},1\n")
    (tmp_path / "README.md").write_text("Numbers.")

    names = ("folder", "pattern", "list")
    data: tuple[Any, ...] = (
        tmp_path,
        tmp_path / "part-*.csv",
        [tmp_path / "part-2.csv", tmp_path / "part-10.csv"],
    )
    for name, files in zip(names, data, strict=True):
        assert client.datasets.upload(files, name=name).rows == 2
        rows = client.send(operations.datasets_preview(dataset=name)).rows
        assert [row.prompt for row in rows] == ["2", "10"]
    with pytest.raises(FileNotFoundError, match="no-such"):
        client.datasets.upload(tmp_path / "no-such-*.csv")
    with pytest.raises(TypeError, match="not both in one upload"):
        client.datasets.upload([tmp_path, {"question": "1"}])  # type: ignore[arg-type]


def test_a_large_file_goes_on_where_its_upload_broke(
    client: Client, breaking: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "LARGE_BYTES", 1000)
    monkeypatch.setattr(datasets, "PART_BYTES", 20_000)
    file = tmp_path / "large.jsonl"
    lines = (json.dumps({"question": str(n), "answer": "1"}) + "\n" for n in range(2000))
    file.write_text("".join(lines))
    size = file.stat().st_size
    sent: list[int] = []
    # The answer to the second part is lost, and then the client ends.
    with breaking(b'"received":40000') as broken, pytest.raises(KeyboardInterrupt):
        broken.datasets.upload(file, progress=lambda done, _: _end_at(60_000, done, sent))
    assert sent == [20_000, 40_000, 60_000]

    sent.clear()
    made = client.datasets.upload(file, progress=lambda done, whole: sent.append(done))
    assert (made.name, made.rows) == ("large", 2000)
    assert sent == [size]


def _end_at(last: int, done: int, sent: list[int]) -> None:
    sent.append(done)
    if done == last:
        raise KeyboardInterrupt


def test_a_submission_whose_answer_was_lost_makes_one_run(
    client: Client, breaking: Any, model: Path
) -> None:
    with breaking(b"HTTP/1.1 201", b"HTTP/1.1 201") as broken:
        run = broken.runs.submit("grpo", model=str(model), dataset="sums", tags=["only-one"])
    assert [each.id for each in client.runs.list(tag="only-one")] == [run.id]
    run = client.runs.get(run.id)
    run.cancel()


def test_events_go_on_after_a_broken_connection_without_one_lost_or_twice(
    run: Run, breaking: Any
) -> None:
    run.update(notes="one")
    run.update(notes="two")
    run.cancel()
    whole = [event.id for event in run.events()]
    assert len(whole) == 3
    assert [event.id for event in run.events(after=whole[1])] == whole[2:]

    marks = [f"id: {id}".encode() for id in whole[1:]]
    with breaking(*marks, passes=True) as broken:
        seen = [event.id for event in broken.runs.get(run.id).events()]
    assert seen == whole


def worker_ids(api: httpx.Client) -> list[str]:
    return [worker["id"] for worker in api.get("/v1/workers").json()["workers"]]


async def test_the_asynchronous_client_does_the_same(
    gateway: GatewayProcess, api: httpx.Client, model: Path
) -> None:
    async with AsyncClient(gateway.url, gateway.key) as client:
        run = await client.runs.submit("grpo", model=str(model), dataset="sums", tags=["async"])
        assert [each.id async for each in client.runs.list(tag="async")] == [run.id]
        made = await client.datasets.upload([{"question": "1+1", "answer": "2"}], name="one-sum")
        assert made.rows == 1
        await run.cancel()
        assert (await run.wait(timeout=10)).state == "cancelled"
        kinds = [event.kind async for event in run.events()]
        assert kinds
        assert await run.metrics() == []
        # Workers of other tests may be there.
        assert [worker.id async for worker in client.workers.list()] == worker_ids(api)
        recipes = await client.send(operations.recipes_list())
        assert "grpo" in [recipe.name for recipe in recipes.recipes]


def test_the_saved_key_is_found_where_the_command_line_finds_it(
    gateway: GatewayProcess, api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADRACE_API_KEY", raising=False)
    monkeypatch.setenv("HEADRACE_GATEWAY_URL", gateway.url)
    monkeypatch.setenv("HEADRACE_DATA", str(gateway.data))
    with Client() as client:
        assert [worker.id for worker in client.workers.list()] == worker_ids(api)
