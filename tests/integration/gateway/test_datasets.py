"""Datasets over HTTP: every format, every refusal, appending, deleting."""

import gzip
import io
import json
import socket
from collections.abc import Iterator

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.integration.gateway.servers import UPLOAD_LIMIT, GatewayProcess, upload

ROWS = b'{"question": "1+1", "answer": "2", "level": 1}\n{"question": "2+2", "answer": "4"}\n'


def parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"question": ["1+1"], "answer": [2]}), sink)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("filename", "content", "answer"),
    [
        ("rows.jsonl", ROWS, "2"),
        ("rows.csv", b"question,answer\n1+1,2\n", "2"),
        ("rows.parquet", parquet(), 2),
    ],
)
def test_jsonl_csv_and_parquet_files_become_rows(
    api: httpx.Client, filename: str, content: bytes, answer: object
) -> None:
    name = f"format-{filename.partition('.')[2]}"
    response = upload(api, name, content, filename=filename)

    assert response.status_code == 201, response.text
    row = api.get(f"/v1/datasets/{name}/preview", params={"limit": 1}).json()["rows"][0]
    assert (row["prompt"], row["answer"]) == ("1+1", answer)


def test_a_mapping_names_the_columns_and_the_rest_stays_with_the_row(api: httpx.Client) -> None:
    mapping = json.dumps({"prompt": "q", "answer": "a"})
    upload(api, "mapped", b'{"q": "x", "a": 1, "answer": 2}', mapping=mapping)

    (row,) = api.get("/v1/datasets/mapped/preview").json()["rows"]
    assert row == {"index": 0, "prompt": "x", "answer": 1, "columns": {"answer": 2}}


def test_an_answer_is_made_of_several_columns_and_paths(api: httpx.Client) -> None:
    row = b'{"q": "x", "test": {"code": "assert f"}, "entry_point": "f", "id": 7}'
    mapping = {"prompt": "q", "answer": ["test.code", "entry_point"], "keep": []}
    response = upload(api, "several", row, mapping=json.dumps(mapping))

    assert response.status_code == 201, response.text
    assert response.json()["mapping"] == mapping
    (row,) = api.get("/v1/datasets/several/preview").json()["rows"]
    assert (row["answer"], row["columns"]) == ({"code": "assert f", "entry_point": "f"}, {})


def test_a_named_mapping_gives_the_dataset_a_template_and_a_verifier_that_runs_use(
    api: httpx.Client,
) -> None:
    response = upload(api, "gsm8k-rows", ROWS, mapping="gsm8k")

    assert response.status_code == 201, response.text
    assert response.json()["mapping"] == "gsm8k"
    defaults = response.json()["defaults"]
    assert "####" in defaults["template"]
    assert [one["verifier"] for one in defaults["rewards"]] == ["math"]
    assert api.get("/v1/datasets/gsm8k-rows").json()["defaults"] == defaults


def test_duplicate_rows_are_counted_at_each_upload(api: httpx.Client) -> None:
    assert upload(api, "twice", ROWS + ROWS).json()["duplicates"] == 2
    assert upload(api, "twice", ROWS + ROWS).json()["duplicates"] == 2
    assert upload(api, "once", ROWS).json()["duplicates"] == 0


def test_a_file_in_parts_becomes_a_dataset_once_it_is_whole(api: httpx.Client) -> None:
    about = {"name": "parts.jsonl", "bytes": len(ROWS), "fingerprint": "v1"}
    made = api.post("/v1/uploads", json=about)
    path = f"/v1/uploads/{made.json()['id']}"
    first = api.put(path, params={"from_byte": 0}, content=ROWS[:30])
    ahead = api.put(path, params={"from_byte": 31}, content=ROWS[31:])
    early = api.post("/v1/datasets", data={"upload": made.json()["id"]})
    again = api.post("/v1/uploads", json=about)
    # A part that begins with bytes that have arrived, as after a lost answer.
    rest = api.put(path, params={"from_byte": 10}, content=ROWS[10:])
    beyond = api.put(path, params={"from_byte": len(ROWS)}, content=b"x")
    dataset = api.post("/v1/datasets", data={"upload": made.json()["id"]})

    assert (made.status_code, made.json()["received"]) == (201, 0)
    assert (first.json()["received"], again.json()["received"]) == (30, 30)
    assert ahead.status_code == early.status_code == 409
    assert f"30 of {len(ROWS)} bytes have arrived" in early.json()["detail"]
    assert (rest.json()["received"], beyond.status_code) == (len(ROWS), 413)
    assert (dataset.status_code, dataset.json()["name"]) == (201, "parts")
    assert (dataset.json()["rows"], dataset.json()["source"]) == (2, "parts.jsonl")
    assert api.get(path).status_code == 404
    too_large = api.post("/v1/uploads", json={"name": "x.csv", "bytes": UPLOAD_LIMIT + 1})
    assert too_large.status_code == 413
    assert "HEADRACE_UPLOAD_LIMIT" in too_large.json()["detail"]
    nothing = api.post("/v1/datasets", data={"name": "none"})
    assert nothing.status_code == 422
    assert "send at least one `file`" in nothing.json()["detail"]


def test_findings_count_lengths_repetitions_and_references_of_all_rows(api: httpx.Client) -> None:
    upload(api, "counted", ROWS, mapping="gsm8k")
    addition = [{"prompt": "1+1", "answer": "2"}, {"prompt": "1+1", "answer": "3"}]
    before = api.get("/v1/datasets/counted/findings").json()
    api.post("/v1/prompts", json={"dataset": "counted", "prompts": addition})
    after = api.get("/v1/datasets/counted/findings").json()

    assert (before["state"], before["counts"]["duplicates"]["rows"]) == ("counted", 0)
    assert (before["counts"]["prompts"]["max"], before["counts"]["answers"]["rows"]) == (3, 2)
    assert after["counts"]["duplicates"] == {"rows": 1, "examples": [{"row": 2, "first": 0}]}
    assert after["counts"]["other_answers"] == {"rows": 1, "examples": [{"row": 3, "first": 0}]}
    # Nobody reads references here.
    (references,) = after["references"]
    assert (references["verifier"], references["state"]) == ("math", "failed")
    assert references["problem"] == "the reward service is away"
    unknown = api.get("/v1/datasets/counted/findings?model=/nowhere")
    assert unknown.status_code == 422
    assert "there is no model at '/nowhere'" in unknown.text


def test_several_files_become_one_dataset_with_warnings_of_probable_mistakes(
    api: httpx.Client,
) -> None:
    parts = [
        ("file", (f"shards-{number:05}-of-00002.csv", f"question;context\n{number};x\n".encode()))
        for number in range(2)
    ]
    made = api.post("/v1/datasets", files=parts)
    refused = api.post("/v1/datasets", files=[*parts, ("file", ("b.csv", b"question\nx\n"))])

    assert made.status_code == 201, made.text
    assert {k: made.json()[k] for k in ("name", "rows", "left_over", "notes")} == {
        "name": "shards",
        "rows": 2,
        "left_over": ["context"],
        "notes": ["the cells are separated by semicolons"],
    }
    assert "--prompt question --prompt context" in made.json()["warnings"][0]
    rows = api.get("/v1/datasets/shards/preview").json()["rows"]
    assert [row["prompt"] for row in rows] == ["0", "1"]
    assert refused.status_code == 422
    assert "b.csv has no column 'context'" in refused.json()["detail"]


def test_a_dataset_without_a_name_gets_that_of_its_file(api: httpx.Client) -> None:
    response = api.post("/v1/datasets", files={"file": ("my rows.v2.jsonl", ROWS)})

    assert response.json()["name"] == "my-rows"


def test_uploading_the_same_again_changes_nothing(api: httpx.Client) -> None:
    first = upload(api, "same", ROWS)
    again = upload(api, "same", ROWS)

    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() | {"added": False} == again.json()


@pytest.mark.parametrize("mappings", [(None, "gsm8k"), ("gsm8k", None)])
def test_the_same_rows_with_other_defaults_are_a_conflict_that_keeps_them(
    api: httpx.Client, mappings: tuple[str | None, str | None]
) -> None:
    name = f"again-{mappings[0]}"
    row = b'{"question": "1+1", "answer": "#### 2"}'
    first, other = ({"mapping": mapping} if mapping else {} for mapping in mappings)
    made = upload(api, name, row, **first)
    refused = upload(api, name, row, **other)
    again = upload(api, name, row, **first)

    assert (made.status_code, refused.status_code, again.status_code) == (201, 409, 200)
    detail = refused.json()["detail"]
    assert detail.startswith(f"dataset '{name}' has these rows already, with")
    assert "without a template and a verifier of its own" in detail
    assert ", and this upload comes with" in detail
    assert "after ####.' and the verifier 'math'" in detail
    assert f"`headrace datasets rm {name}`" in detail
    assert again.json() == made.json() | {"added": False}
    assert api.get(f"/v1/datasets/{name}/preview").json()["rows"][0]["prompt"] == "1+1"


def test_a_name_with_other_rows_is_a_conflict_and_leaves_no_file(
    api: httpx.Client, gateway: GatewayProcess
) -> None:
    kept = upload(api, "taken", ROWS).json()
    before = sorted(gateway.data.rglob("*.arrow"))
    response = upload(api, "taken", b'{"question": "other", "answer": 1}')

    assert response.status_code == 409
    assert f"there is a dataset 'taken' with other rows (id {kept['id']})" in response.text
    assert "delete it first (`headrace datasets rm taken`)" in response.text
    assert sorted(gateway.data.rglob("*.arrow")) == before


@pytest.mark.parametrize(
    ("content", "form", "status", "detail"),
    [
        (b"", {}, 422, "bad.jsonl is empty: it has no rows"),
        (b"\n", {}, 422, "bad.jsonl has no rows"),
        (b'{"prompt": "a"}\nnot json\n', {}, 422, "line 2 is not JSON"),
        (b'{"prompt": "a"}\n[1]\n', {}, 422, "line 2 is a list, not an object"),
        (b'{"prompt": ""}\n', {}, 422, "line 1: the prompt is empty"),
        (b'{"prompt": [{"role": "assistant", "content": "a"}]}\n', {}, 422, "without messages"),
        (b'{"prompt": "\xff"}\n', {}, 422, "line 1 is not valid UTF-8"),
        (ROWS, {"mapping": '{"prompt": "quest"}'}, 422, "did you mean 'question'?"),
        (ROWS, {"mapping": '{"prompts": "question"}'}, 422, "the mapping cannot be used"),
        (ROWS, {"mapping": "{question"}, 422, "the mapping is not JSON"),
        (ROWS, {"format": "xml"}, 422, "format"),
        (ROWS, {"name": "no/slashes"}, 422, "name"),
        (b"hello", {"filename": "bad.txt"}, 415, "cannot tell the format of 'bad.txt'"),
        (b"PK\x03", {"filename": "bad.zip"}, 415, "unpack it"),
        (b"MATH/", {"filename": "bad.tar"}, 422, "not a whole tar"),
        (b"\x1f\x8b\x08", {"filename": "bad.jsonl.gz"}, 422, "no whole gzip file"),
        (ROWS, {"mapping": "gsm9k"}, 422, "did you mean 'gsm8k'"),
        (b"x" * (UPLOAD_LIMIT + 1), {}, 413, "HEADRACE_UPLOAD_LIMIT"),
    ],
)
def test_an_upload_that_cannot_be_used_is_refused_with_a_problem_document(
    api: httpx.Client, content: bytes, form: dict[str, str], status: int, detail: str
) -> None:
    response = upload(api, form.pop("name", "bad"), content, **form)

    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert detail in response.text
    assert api.get("/v1/datasets/bad").status_code == 404


def test_an_upload_without_a_declared_length_is_limited_all_the_same(api: httpx.Client) -> None:
    def endless() -> Iterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
        for _ in range(UPLOAD_LIMIT // 1000 + 1):
            yield b"y" * 1000

    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    response = api.post("/v1/datasets", content=endless(), headers=headers)

    assert response.status_code == 413


def test_a_too_large_upload_with_expect_100_continue_is_refused_before_it_is_sent(
    api: httpx.Client,
) -> None:
    # As curl does for large files. httpx cannot.
    with socket.create_connection((api.base_url.host, api.base_url.port), timeout=10) as client:
        client.sendall(
            b"POST /v1/datasets HTTP/1.1\r\nHost: gateway\r\nExpect: 100-continue\r\n"
            b"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 99999999\r\n"
            b"Authorization: %b\r\n\r\n" % api.headers["Authorization"].encode()
        )
        answer = client.recv(65536)

    assert answer.startswith(b"HTTP/1.1 413 ")


def test_prompts_are_appended_and_found_behind_the_old_rows(api: httpx.Client) -> None:
    upload(api, "growing", ROWS)
    prompts = [{"prompt": "3+3", "answer": "6"}, {"prompt": [{"role": "user", "content": "4+4"}]}]

    added = api.post("/v1/prompts", json={"dataset": "growing", "prompts": prompts})

    assert added.status_code == 201, added.text
    assert {k: added.json()[k] for k in ("added", "first", "rows")} == {
        "added": 2,
        "first": 2,
        "rows": 4,
    }
    rows = api.get("/v1/datasets/growing/preview", params={"row": 1}).json()["rows"]
    assert [row["prompt"] for row in rows] == ["2+2", "3+3", [{"role": "user", "content": "4+4"}]]


@pytest.mark.parametrize(
    ("body", "status", "detail"),
    [
        ({"dataset": "growin", "prompts": [{"prompt": "a"}]}, 404, "did you mean 'grown'?"),
        ({"dataset": "grown", "prompts": []}, 422, "prompts"),
        ({"dataset": "grown", "prompts": [{"prompt": " "}]}, 422, "prompt 1: the prompt is empty"),
        (
            {"dataset": "grown", "prompts": [{"prompt": [{"role": "assistant", "content": "a"}]}]},
            422,
            "prompt 1: the prompt ends with an assistant's turn",
        ),
        ({"dataset": "grown", "prompts": [{"promt": "a"}]}, 422, "prompts.0.promt"),
    ],
)
def test_prompts_that_cannot_be_used_are_refused(
    api: httpx.Client, body: dict[str, object], status: int, detail: str
) -> None:
    upload(api, "grown", ROWS)
    api.delete("/v1/datasets/growing")

    response = api.post("/v1/prompts", json=body)

    assert response.status_code == status
    assert detail in response.text
    assert api.get("/v1/datasets/grown").json()["rows"] == 2


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b'{"prompt": "a \\ud800 b"}', "prompts.1.prompt holds half of a surrogate pair"),
        (
            b'{"prompt": "a", "answer": "\\udfff"}',
            "prompts.1.answer holds half of a",
        ),
        (
            b'{"prompt": "a", "columns": {"x": "\\udfff"}}',
            "prompts.1.columns.x holds half of",
        ),
        (b'{"prompt": "a", "answer": NaN}', "prompts.1.answer is NaN, Infinity"),
        (b'{"prompt": "a", "answer": 1e400}', "prompts.1.answer is NaN, Infinity"),
    ],
)
def test_prompts_with_surrogates_or_nan_are_refused(
    api: httpx.Client, content: bytes, sentence: str
) -> None:
    upload(api, "textual", ROWS)
    body = b'{"dataset": "textual", "prompts": [{"prompt": "1+1"}, %b]}' % content

    response = api.post("/v1/prompts", content=body, headers={"content-type": "application/json"})

    assert response.status_code == 422, response.text
    assert sentence in response.json()["detail"]
    assert api.get("/v1/datasets/textual").json()["rows"] == 2


@pytest.mark.parametrize("kinds", [("application/json", "text/plain"), ("text/plain",) * 2])
def test_a_body_with_two_content_types_is_refused(
    api: httpx.Client, kinds: tuple[str, str]
) -> None:
    """The check of bodies read one, the route the other: NaN was stored as null."""
    upload(api, "textual", ROWS)
    body = b'{"dataset": "textual", "prompts": [{"prompt": "1+1", "answer": NaN}]}'
    headers = [("content-type", kind) for kind in kinds]

    response = api.post("/v1/prompts", content=body, headers=headers)

    assert response.status_code == 400, response.text
    assert "has the header content-type more than once" in response.json()["detail"]
    assert api.get("/v1/datasets/textual").json()["rows"] == 2


def test_clients_that_leave_an_upload_take_no_place_of_others(
    api: httpx.Client, gateway: GatewayProcess
) -> None:
    """Each took one of two places until its file was read, for half an hour at most."""
    slow = gzip.compress(b"\n" * (60 << 20))
    request = api.build_request("POST", "/v1/datasets", files={"file": ("slow.jsonl.gz", slow)})
    lines = [b"%b: %b" % pair for pair in request.headers.raw]
    head = b"\r\n".join([b"POST /v1/datasets HTTP/1.1", *lines])
    for _ in range(4):
        with socket.create_connection((api.base_url.host, api.base_url.port), 10) as client:
            client.sendall(head + b"\r\n\r\n" + request.read())
    began = gateway.cpu_seconds

    made = upload(api, "quick", gzip.compress(ROWS), filename="quick.jsonl.gz")

    assert made.status_code == 201
    assert made.elapsed.total_seconds() < 20
    assert gateway.cpu_seconds - began < 2


def test_a_reference_that_is_an_id_and_a_name_means_the_id(api: httpx.Client) -> None:
    first = upload(api, "first-of-two", ROWS).json()["id"]
    upload(api, first, ROWS + ROWS)

    assert api.get(f"/v1/datasets/{first}").json()["name"] == "first-of-two"


def test_a_deleted_dataset_is_gone_with_its_files(
    api: httpx.Client, gateway: GatewayProcess
) -> None:
    record = upload(api, "short-lived", ROWS).json()

    assert api.delete("/v1/datasets/short-lived").status_code == 204
    assert api.get("/v1/datasets/short-lived").status_code == 404
    assert not (gateway.data / "datasets" / record["id"]).exists()


@pytest.mark.parametrize("section", ["data", "evaluation"])
def test_a_dataset_in_use_cannot_be_deleted_until_the_run_is_over(
    api: httpx.Client, model: object, section: str
) -> None:
    for name in ("used-data", "used-evaluation"):
        upload(api, name, ROWS)
    config = {
        "model": {"path": str(model)},
        "data": {"dataset": "used-data"},
        "evaluation": {"dataset": "used-evaluation"},
    }
    run = api.post("/v1/runs", json={"recipe": "grpo", "config": config}).json()

    refused = api.delete(f"/v1/datasets/used-{section}")

    assert refused.status_code == 409
    assert f"is used by grpo ({run['id']}, queued)" in refused.json()["detail"]
    api.post(f"/v1/runs/{run['id']}/cancel")
    assert api.delete(f"/v1/datasets/used-{section}").status_code == 204


def test_an_unknown_dataset_is_answered_with_the_nearest_name(api: httpx.Client) -> None:
    upload(api, "arithmetic", ROWS)

    response = api.get("/v1/datasets/arithmetics")

    assert response.status_code == 404
    assert "did you mean 'arithmetic'?" in response.json()["detail"]
