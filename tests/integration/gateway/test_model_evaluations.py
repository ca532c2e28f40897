"""Evaluations of models over HTTP: what is queued, refused, listed and compared."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.contracts.evaluation import EvaluationRecord
from services.evaluations import folder_of, part_path, write_part, write_result
from tests.evaluating import answered
from tests.integration.gateway.servers import GatewayProcess, Headrace, problems, upload, warnings

pytestmark = pytest.mark.usefixtures("sums")


@pytest.fixture
def evaluate(api: httpx.Client, model: Path) -> Iterator[Any]:
    """Asks for evaluations on `sums`, which has no verifier of its own. All are cancelled."""
    ids: list[str] = []

    def send(**request: Any) -> httpx.Response:
        asked = {"model": str(model), "dataset": "sums", "verifier": "math"} | request
        response = api.post("/v1/evaluations", json=asked)
        if response.status_code == 201:
            ids.append(response.json()["run"]["id"])
        return response

    yield send
    for run in ids:
        api.post(f"/v1/runs/{run}/cancel")


def config_of(api: httpx.Client, response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 201, response.text
    config: dict[str, Any] = api.get(f"/v1/runs/{response.json()['run']['id']}").json()["config"]
    return config


def write_evaluation(data: Path, run: str, statuses: list[str], **fields: Any) -> None:
    """The files of an evaluation that is done."""
    record = EvaluationRecord(
        id="000000-sums",
        run=run,
        name="sums",
        dataset="sums",
        step=0,
        version="a:0",
        samples=1,
        rows=len(statuses),
        answered=len(statuses),
        state="done",
        asked=1.0,
        finished=2.0,
        metrics={"accuracy": statuses.count("correct") / len(statuses)},
    ).model_copy(update=fields)
    folder = folder_of(data, run, record.id)
    folder.mkdir(parents=True)
    write_part(part_path(folder, 1), [answered(row, status) for row, status in enumerate(statuses)])
    write_result(data, record)


def test_an_evaluation_is_queued_as_a_run_that_trains_nothing(
    api: httpx.Client, evaluate: Any, model: Path
) -> None:
    response = evaluate(samples=4, rows=10, max_tokens=20, priority=2, category="level")

    config = config_of(api, response)
    run = response.json()["run"]
    assert (run["max_steps"], run["state"], run["priority"]) == (0, "queued", 2)
    assert run["name"] == "model on sums"
    assert response.json()["model"] == str(model)
    assert config["evaluation"]["samples"] == 4
    # Several greedy answers would all be the same.
    assert config["evaluation"]["temperature"] == 1.0
    assert config["evaluation"]["rows"] == 10
    assert config["sampling"]["max_tokens"] == 20
    assert [one["verifier"] for one in config["rewards"]] == ["math"]
    (warning,) = warnings(api.get(f"/v1/runs/{run['id']}").json())
    assert "rows of sums that were looked at has a column 'level'" in warning
    listed = api.get("/v1/evaluations").json()["evaluations"]
    assert listed[0]["run"]["id"] == run["id"]
    assert api.get(f"/v1/evaluations/{run['id']}").json()["evaluation"] is None


def test_a_dataset_with_a_mapping_brings_its_template_and_verifier(
    api: httpx.Client, evaluate: Any
) -> None:
    upload(api, "puzzles", b'{"nums": [1, 2], "target": 3}', mapping="countdown")
    config = config_of(api, evaluate(dataset="puzzles", verifier=None))

    assert [one["verifier"] for one in config["rewards"]] == ["countdown"]
    assert "<answer>" in config["data"]["template"]
    assert config["evaluation"]["temperature"] == 0.0


def test_an_evaluation_like_another_has_its_options_and_its_own_model(
    api: httpx.Client, evaluate: Any, tmp_path: Path
) -> None:
    first = evaluate(samples=2, max_tokens=9, config={"data": {"template": "{prompt}="}})
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text("{}")
    (other / "tokenizer_config.json").write_text("{}")
    config = config_of(api, first)
    repeated = config_of(
        api, evaluate(model=str(other), like=first.json()["run"]["id"], verifier=None)
    )

    assert repeated["model"]["path"] == str(other)
    assert repeated == config | {"model": repeated["model"]}


@pytest.mark.parametrize(
    ("request_", "status", "sentence"),
    [
        ({"dataset": "sum"}, 404, "did you mean 'sums'?"),
        ({"model": "nobody"}, 404, "there is no run 'nobody'"),
        ({"model": "/nowhere/at/all"}, 422, "there is no model at '/nowhere/at/all'"),
        ({"model": "no\0hub/name"}, 422, "there is no model at"),
        ({"verifier": None}, 422, "nothing says how answers to dataset sums are scored"),
        ({"like": "nobody"}, 404, "there is no run 'nobody'"),
        ({"samples": 0}, 422, "samples"),
        ({"sample": 1}, 422, "sample"),
        ({"config": {"samplingg": {}}}, 422, "did you mean 'sampling'?"),
        ({"config": {"training": {"max_steps": 5}}}, 422, "an evaluation trains nothing"),
        ({"config": {"type": "sft"}}, 422, "an evaluation trains nothing"),
        ({"config": {"training": 5}}, 422, "is a section, not 5"),
        (
            {"config": {"evaluation": {"name": "b", "more": [{"dataset": "sums", "name": "b"}]}}},
            422,
            "two held-out datasets are called 'b'",
        ),
        (
            {"config": {"evaluation": {"more": [{"dataset": "sums"}]}}},
            422,
            "two held-out datasets are called 'sums'",
        ),
    ],
)
def test_what_cannot_be_evaluated_is_refused_and_nothing_is_queued(
    api: httpx.Client, evaluate: Any, request_: dict[str, Any], status: int, sentence: str
) -> None:
    before = api.get("/v1/evaluations").json()

    response = evaluate(**request_)

    assert response.status_code == status, response.text
    assert sentence in json.dumps(response.json(), ensure_ascii=False)
    assert api.get("/v1/evaluations").json() == before


def test_a_run_without_steps_needs_an_evaluation(submit: Any) -> None:
    response = submit({"training": {"max_steps": 0}})

    assert "training.max_steps 0 trains nothing" in json.dumps(problems(response))


def test_a_run_that_trains_is_not_a_model_evaluation(api: httpx.Client, submit: Any) -> None:
    run = submit().json()["id"]

    response = api.get(f"/v1/evaluations/{run}")

    assert response.status_code == 404
    assert f"its evaluations are at /v1/runs/{run}/evaluations" in response.text


def test_two_evaluations_are_compared_by_row(
    api: httpx.Client, evaluate: Any, gateway: GatewayProcess
) -> None:
    mine, other = (
        evaluate(max_tokens=tokens, name=f"compared-{tokens}").json()["run"]["id"]
        for tokens in (8, 9)
    )
    place = f"/v1/runs/{mine}/evaluations/000000-sums/comparison"
    write_evaluation(gateway.data, mine, ["correct"] * 7 + ["wrong"])
    missing = api.get(place, params={"against": other})
    assert missing.status_code == 404
    assert "no evaluation on dataset sums that is over" in missing.text

    write_evaluation(gateway.data, other, ["wrong"] * 6 + ["correct"] * 2)
    compared = api.get(place, params={"against": "compared-9", "limit": 2}).json()

    assert (compared["better"], compared["worse"]) == (6, 1)
    comparison = compared["comparison"]
    assert (comparison["metric"], comparison["test"], comparison["rows"]) == (
        "accuracy",
        "mcnemar",
        8,
    )
    assert comparison["p"] == pytest.approx(2 * (1 + 7) / 2**7)
    assert [one["row"] for one in comparison["changed"]] == [0, 1]
    assert "sampling.max_tokens" in compared["differ"]
    same = api.get(place, params={"against": f"{other}/000000-sums"}).json()
    assert same["comparison"]["p"] == comparison["p"]


def test_only_finished_evaluations_of_equal_rows_are_compared(
    api: httpx.Client, evaluate: Any, gateway: GatewayProcess
) -> None:
    mine, failed, elsewhere = (
        evaluate(name=f"uncompared-{n}").json()["run"]["id"] for n in range(3)
    )
    write_evaluation(gateway.data, mine, ["correct"])
    write_evaluation(gateway.data, failed, ["correct"], state="failed", answered=0)
    write_evaluation(gateway.data, elsewhere, ["correct"], dataset="others")
    place = f"/v1/runs/{mine}/evaluations/000000-sums/comparison"

    response = api.get(place, params={"against": failed})
    assert (response.status_code, "has failed with 0 of 1 row: " in response.text) == (409, True)
    response = api.get(place, params={"against": f"{elsewhere}/000000-sums"})
    assert (response.status_code, "on dataset sums" in response.text) == (422, True)
    response = api.get(place, params={"against": f"{elsewhere}/000009-x"})
    assert (response.status_code, "no evaluation '000009-x'" in response.text) == (404, True)


def test_datasets_of_one_name_are_compared_only_if_they_may_be_equal(
    api: httpx.Client, evaluate: Any, gateway: GatewayProcess
) -> None:
    runs = [evaluate(name=f"renewed-{n}").json()["run"]["id"] for n in range(3)]
    for run, dataset in zip(runs, ("a", "b", None), strict=True):
        write_evaluation(gateway.data, run, ["correct"], dataset_id=dataset)
    place = f"/v1/runs/{runs[0]}/evaluations/000000-sums/comparison"

    refused = api.get(place, params={"against": runs[1]})
    assert (refused.status_code, "another one of that name (b)" in refused.text) == (422, True)
    assert api.get(place, params={"against": runs[2]}).status_code == 200


def test_the_command_queues_both_sides_and_compares_what_is_there(
    api: httpx.Client, headrace: Headrace, model: Path, gateway: GatewayProcess
) -> None:
    arguments = ("eval", str(model), "sums", "--verifier", "math", "--no-wait", "--json")
    done = headrace(*arguments, "--name", "mine", "--against", str(model))
    assert done.returncode == 0, done.stdout + done.stderr
    queued = json.loads(done.stdout)
    mine, other = (queued[side]["run"]["id"] for side in ("evaluation", "against"))
    assert mine != other
    asked = arguments[:-1]
    for options, how in (
        ((), "1 answer a row at temperature 0, which --temperature changes"),
        (("--samples", "2"), "2 answers a row at temperature 1, which --temperature changes"),
        (("--samples", "2", "--temperature", "0.5"), "2 answers a row at temperature 0.5\n"),
    ):
        sampled = headrace(*asked, *options)
        assert how in sampled.stderr
        api.post(f"/v1/runs/{sampled.stdout.split(' as ')[1].split()[0]}/cancel")

    write_evaluation(gateway.data, mine, ["correct", "correct", "wrong"])
    write_evaluation(gateway.data, other, ["wrong", "correct", "wrong"])
    shown = headrace("compare", mine, other)
    for run in (mine, other):
        api.post(f"/v1/runs/{run}/cancel")

    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith(f"mine ({mine})\n")
    assert f" on sums ({other}), on 3 rows: accuracy 0.667 against 0.333" in shown.stdout
    assert "McNemar's exact test" in shown.stdout
    assert "rows that are better: 1, that are worse: 0" in shown.stdout
    # It waits for the end, which has come.
    for against, sentence in (("nobody", "there is no run 'nobody'"), (mine, "it was cancelled")):
        again = headrace("eval", str(model), "sums", "--verifier", "math", "--against", against)
        assert (again.returncode, sentence in again.stderr) == (1, True), again.stderr
        newest = api.get("/v1/evaluations").json()["evaluations"][0]["run"]
        assert (newest["id"] not in (mine, other), newest["state"]) == (True, "cancelled")
    assert api.get("/v1/evaluations").json()["evaluations"][0]["run"]["state"] == "cancelled"
