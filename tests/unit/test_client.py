"""The Python client: alone, as its generator makes it, and its decisions without a gateway."""

import ast
import inspect
import io
import json
import re
import subprocess
import sys
import tarfile
import textwrap
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

import headrace
from deploy import client_code, client_reference
from headrace import BadAnswer, Chart, Client, HeadraceError, NotInstalled, Run, Session, operations
from headrace.archive import Unpacking
from headrace.asynchronous.runs import _event
from headrace.errors import refusal
from headrace.login import address, api_key
from headrace.models import RunSummary, Series, StepEvent
from headrace.request import Request, fields_of, reward_body
from headrace.rows import Rows, as_html, submission

ROOT = Path(__file__).resolve().parents[2]


def test_it_imports_httpx_pydantic_and_nothing_of_the_server() -> None:
    code = (
        "from headrace import *; import sys; "
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert {"headrace", "httpx", "pydantic"} <= loaded
    server = {"services", "learner", "rollout", "reward", "recipes", "bench"}
    heavy = {"torch", "redis", "fastapi", "numpy", "pyarrow", "typer", "yaml"}
    assert loaded & (server | heavy) == set()


def test_the_committed_client_is_what_the_api_makes() -> None:
    for name, source in client_code.files().items():
        assert (ROOT / "headrace" / name).read_text() == source, (
            f"headrace/{name}: the API or headrace/asynchronous/ has changed; run make client"
        )


def test_an_event_has_the_fields_of_its_kind_and_an_unknown_kind_is_told_and_left_out() -> None:
    about = {"id": "1-0", "time": 1.0}
    step = {**about, "kind": "step", "data": {"step": 3, "reward/mean": 0.5}}
    event = _event("r", json.dumps(step))
    assert isinstance(event, StepEvent)
    assert (event.run, event.data.step, event.data["reward/mean"]) == ("r", 3, 0.5)
    with pytest.raises(KeyError):
        event.data["nothing"]
    with pytest.warns(match="a newer headrace knows"):
        assert _event("r", json.dumps({**about, "kind": "melted", "data": {}})) is None
    for broken in ("{", "[]", json.dumps({**about, "kind": "state", "data": {}})):
        with pytest.raises(BadAnswer, match="run r cannot be read"):
            _event("r", broken)


def test_the_reference_is_what_the_client_says_of_itself() -> None:
    text = client_reference.reference()
    assert client_reference.PAGE.read_text() == text, "the client has changed; run make client"
    assert 'run.series(names: Iterable[str] | str, *, points: int = 1000, x: str = "step")' in text
    public = {
        f"### {kind.__name__}.{name}\n"
        for kind in (Client, Run, headrace.Session, headrace.Group)
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if name[0] != "_" and name not in client_reference.HIDDEN
    }
    assert {heading for heading in public if heading not in text} == set()


def test_each_operation_of_the_api_is_a_request() -> None:
    lines = (ROOT / "tests/unit/gateway/operations.txt").read_text().splitlines()
    named = [line.split()[0] for line in lines]
    assert len(named) > 60
    assert [name for name in named if not callable(getattr(operations, name, None))] == []


def test_a_path_and_a_body_are_sent_as_they_are() -> None:
    request = operations.runs_update(run="a/b ?", body={"notes": None})
    arguments = request.arguments(ExitStack())
    assert (arguments["method"], arguments["url"]) == ("PATCH", "/v1/runs/a%2Fb%20%3F")
    assert arguments["json"] == {"notes": None}
    file = operations.files_get(path="weights/a b.bin").arguments(ExitStack())
    assert file["url"] == "/v1/files/weights/a%20b.bin"


@pytest.mark.parametrize(
    ("status", "keyed", "told", "pause"),
    [
        (429, False, "7", 7.0),
        (503, True, "2", 2.0),
        (503, False, "2", None),
        (409, True, "1", 1.0),
        (409, True, None, None),
        (429, False, "900", 30.0),
        (500, True, "1", None),
        (422, True, None, None),
        (201, True, None, None),
    ],
)
def test_a_request_is_sent_again_only_if_that_is_safe_and_useful(
    status: int, keyed: bool, told: str | None, pause: float | None
) -> None:
    request: Request[None] = Request("POST", "/v1/x", None, is_keyed=keyed)
    headers = {"Retry-After": told} if told else {}
    assert request.pause(1, httpx.Response(status, headers=headers)) == pause


def test_only_a_request_that_repeats_safely_follows_a_lost_answer() -> None:
    assert Request[None]("POST", "/v1/x", None).pause(1, None) is None
    for request in (
        Request[None]("GET", "/v1/x", None),
        Request[None]("POST", "/v1/x", None, is_keyed=True),
    ):
        assert 0.2 < (request.pause(1, None) or 0) <= 0.5
    first, second = (
        operations.keys_delete(id="k").headers(),
        operations.keys_delete(id="k").headers(),
    )
    assert first["Idempotency-Key"] != second["Idempotency-Key"]


def test_an_error_has_the_problems_and_anything_else_that_answers_is_named() -> None:
    body = {"detail": "2 keys are wrong", "problems": [{"path": "a.b", "message": "too low"}]}
    error = refusal(422, json.dumps(body), "http://g/v1/runs")
    assert (type(error).__name__, error.status) == ("Invalid", 422)
    assert str(error) == "2 keys are wrong\n  a.b: too low"
    assert str(refusal(404, '{"error": {"message": "no run x"}}', "u")) == "no run x"
    for text in ("<html>", "[]", "null", '{"problems": 3}', '{"error": null}'):
        broken = refusal(502, text, "http://g/v1/runs")
        assert str(broken) == "http://g/v1/runs answered 502", text
        assert isinstance(broken, headrace.Unavailable)


def test_the_saved_key_is_shown_to_its_own_gateway_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("API_KEY", "API_KEY_FILE", "GATEWAY_URL"):
        monkeypatch.delenv(f"HEADRACE_{name}", raising=False)
    monkeypatch.setenv("HEADRACE_DATA", str(tmp_path))
    (tmp_path / "api-key").write_text("hr-saved\n")
    assert address(None) == "http://127.0.0.1:8000"
    assert address("box:8000/") == "http://box:8000"
    assert api_key("http://127.0.0.1:9") == "hr-saved"
    assert api_key("http://box:8000") is None
    monkeypatch.setenv("HEADRACE_GATEWAY_URL", "box:8000")
    assert api_key("http://box:8000") == "hr-saved"
    assert api_key("http://other:8000") is None
    monkeypatch.setenv("HEADRACE_API_KEY_FILE", str(tmp_path / "none"))
    with pytest.raises(HeadraceError, match="none cannot be read"):
        api_key("http://box:8000")
    monkeypatch.setenv("HEADRACE_API_KEY", "hr-mine")
    assert api_key("http://other:8000") == "hr-mine"


def test_rows_say_how_they_become_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(NotInstalled, match="pip install pandas"):
        Rows([{"step": 1}]).to_pandas()


def test_model_and_dataset_become_keys_of_the_config() -> None:
    body = submission("grpo", "m", "d", {"data": {"template": "{prompt}"}}, name=None, tags=["a"])
    config = {"model": {"path": "m"}, "data": {"template": "{prompt}", "dataset": "d"}}
    assert body == {"recipe": "grpo", "config": config, "tags": ["a"]}
    with pytest.raises(ValueError, match=r"config names model\.path too"):
        submission(None, "m", None, {"model": {"path": "other"}})


def test_a_run_in_a_notebook_is_escaped() -> None:
    record = RunSummary(
        id="0a", name="<b>", pool="p", kind="rl", state="failed", created=1.0, reason="<script>",
        step=3, max_steps=9, reward=0.5,
    )  # fmt: skip
    assert as_html(record, 'http://g/"') == (
        '<a href="http://g/&quot;/runs/0a">&lt;b&gt;</a> <code>0a</code> '
        "failed · step 3 of 9 · reward 0.5 · &lt;script&gt;"
    )


def curve(name: str, *values: float) -> Series:
    x = [float(step) for step in range(1, len(values) + 1)]
    return Series(run="0a", name=name, x=x, mean=list(values), min=None, max=None, count=None)


def test_a_chart_has_a_line_for_each_metric_with_round_ticks_and_escapes_names(
    tmp_path: Path,
) -> None:
    chart = Chart("<b>", "step", [curve("reward/mean", 0.0, 1.0), curve("loss", 0.5, 0.5)])
    svg = chart.save(tmp_path / "chart.svg").read_text()
    assert "&lt;b&gt;" in svg
    assert "<b>" not in svg
    # From step 1 to 2, and from the lowest value to the highest.
    assert 'points="56.0,244.0 624.0,30.0"' in svg
    assert re.findall(r">([0-9.]+)</text>", svg)[:6] == ["0", "0.2", "0.4", "0.6", "0.8", "1"]
    assert repr(chart) == "<Chart of <b>: reward/mean, loss>"
    assert "no values yet" in Chart("a", "step", []).svg
    assert 'points="340.0,137.0"' in Chart("a", "step", [curve("loss", 3.0)]).svg


def archive(*files: tuple[str, bytes], kind: bytes = tarfile.REGTYPE) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size, member.type = len(content), kind
            tar.addfile(member, io.BytesIO(content))
    return made.getvalue()


def test_an_archive_is_unpacked_while_it_arrives(tmp_path: Path) -> None:
    content = b"w" * 300_000
    whole = archive(("run-7/model.safetensors", content), ("run-7/a/b.json", b"{}"))
    with Unpacking(tmp_path) as unpacking:
        for start in range(0, len(whole), 1000):
            unpacking.write(whole[start : start + 1000])
    assert unpacking.folder == tmp_path / "run-7"
    assert (tmp_path / "run-7/model.safetensors").read_bytes() == content
    assert (tmp_path / "run-7/a/b.json").read_text() == "{}"
    with pytest.raises(HeadraceError, match="run-7 exists already"), Unpacking(tmp_path) as again:
        again.write(whole)
    assert [file.name for file in tmp_path.iterdir()] == ["run-7"]


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        (archive(("run-7/../../x", b"1")), "is no file in its folder"),
        (archive(("/etc/x", b"1")), "is no file in its folder"),
        (archive(("x", b"1")), "is no file in its folder"),
        (archive(("run-7/x", b""), kind=tarfile.SYMTYPE), "is no file in its folder"),
        (archive(("run-7/x", b"1"), ("run-8/x", b"1")), "has 2 folders instead of one"),
        (archive(("run-7/x", b"1" * 5000))[:3000], "cannot be unpacked"),
        (b"<html>" * 100, "cannot be unpacked"),
        (b"", "cannot be unpacked"),
    ],
)
def test_a_hostile_or_broken_archive_leaves_nothing(
    tmp_path: Path, sent: bytes, problem: str
) -> None:
    target = tmp_path / "target"
    with pytest.raises(BadAnswer, match=problem), Unpacking(target) as unpacking:
        unpacking.write(sent)
    assert [*target.iterdir()] == []
    assert [*tmp_path.iterdir()] == [target]


def test_a_reward_is_a_number_or_the_parts_of_a_sum() -> None:
    assert reward_body(0.5) == {"reward": 0.5}
    assert reward_body({"format": 1.0}) == {"components": {"format": 1.0}}


def test_server_sent_events_are_parsed() -> None:
    assert fields_of([": ping", "id: 5-0", "data: {", "data:  }"]) == {"id": "5-0", "data": "{\n }"}


def test_the_examples_of_its_page_use_what_there_is() -> None:
    blocks = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs/python.md").read_text(), re.M | re.S
    )
    assert len(blocks) >= 4
    client = Client("http://127.0.0.1:1", "k")
    things = {
        "client": client,
        "run": Run,
        "session": Session,
        "operations": operations,
        "headrace": headrace,
    }
    calls = 0
    for block in blocks:
        for node in ast.walk(ast.parse(textwrap.dedent(block))):
            if isinstance(node, ast.ImportFrom) and node.module == "headrace":
                assert [each.name for each in node.names if not hasattr(headrace, each.name)] == []
            if not isinstance(node, ast.Call):
                continue
            path = ast.unparse(node.func).split(".")
            if path[0] not in things or not all(part.isidentifier() for part in path):
                continue
            found: object = things[path[0]]
            for part in path[1:]:
                found = getattr(found, part)
            parameters = inspect.signature(found).parameters  # type: ignore[arg-type]
            is_open = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
            given = {each.arg for each in node.keywords}
            assert is_open or given <= parameters.keys(), ast.unparse(node)
            calls += 1
    assert calls >= 12
