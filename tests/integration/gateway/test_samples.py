"""Sampled answers over HTTP, in a terminal and as JSON."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.contracts.evaluation import AnsweredRow, EvaluationRecord
from services.contracts.groups.sampled_answer import SampledAnswer
from services.contracts.records import RunRecord, RunState
from services.evaluations import folder_of, part_path, write_part, write_result
from services.store import Store
from services.store.keys import run_key
from tests import kept_rollouts
from tests.evaluating import answered
from tests.integration.gateway.servers import GatewayProcess, Headrace, InStore, problems
from tests.kept_rollouts import keep

pytestmark = pytest.mark.usefixtures("sums")


def answer(step: int, reward: float | None, **more: Any) -> dict[str, Any]:
    return {
        "step": step,
        "task": 10 * step,
        "row": 7,
        "dataset": "",
        "own": None,
        "prompt": "<bos>1+2=",
        "completion": "3<eos>",
        "reference": "3",
        "tokens": 2,
        "reward": reward,
        "status": "correct",
        "components": {"math": reward, "format": 0.5},
        "reasons": {"math": "'3' (unmarked) against '3'"},
        "advantage": -0.25,
        "finish_reason": "stop",
        "versions": [step - 1],
    } | more


@pytest.fixture
def run(submit: Any) -> str:
    id: str = submit().json()["id"]
    return id


def written(gateway: GatewayProcess, run: str, rows: list[dict[str, Any]]) -> None:
    """Have the learner keep these answers, each group's in one step."""
    groups: dict[int, int] = {}
    kept = []
    for row in rows:
        fields = {name: value for name, value in row.items() if name not in ("task", "tokens")}
        number = groups[row["task"]] = groups.get(row["task"], -1) + 1
        spans = [{"start": 0, "end": row["tokens"], "version": v} for v in row["versions"]]
        kept.append(
            kept_rollouts.answer(
                group=row["task"],
                sample=number,
                length=row["tokens"],
                **fields | {"versions": spans},
            )
        )
    keep(gateway.data / "runs" / run, kept)


def test_the_newest_answers_come_first_and_older_ones_page_by_page(
    api: httpx.Client, run: str, gateway: GatewayProcess
) -> None:
    rows = [answer(step, reward) for step in (1, 2, 3) for reward in (1.0, None)]
    written(gateway, run, rows)
    path = f"/v1/runs/{run}/samples"

    none: dict[str, Any] = {"judged": [], "none_because": None, "next": None}
    assert api.get(path).json() == {"run": run, "samples": rows[::-1], **none}
    assert api.get(f"{path}?step=2").json()["samples"] == [rows[3], rows[2]]
    assert api.get(f"{path}?step=9").json()["samples"] == []
    pages, cursor = [], ""
    while True:
        page = api.get(f"{path}?limit=4{cursor}").json()
        pages.append(page["samples"])
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert pages == [rows[:1:-1], rows[1::-1]]


def test_a_run_that_has_trained_nothing_shows_answers_that_were_judged(
    api: httpx.Client, run: str, gateway: GatewayProcess, in_store: InStore, headrace: Headrace
) -> None:
    path = f"/v1/runs/{run}/samples"
    why = "no answers: they are kept when they are judged"
    none: dict[str, Any] = {"samples": [], "judged": [], "none_because": why, "next": None}
    assert api.get(path).json() == {"run": run, **none}

    best, worst = (answer(0, reward, advantage=None) for reward in (1.0, 0.0))
    in_store(lambda store: store.judged.add(run, [SampledAnswer(**best), SampledAnswer(**worst)]))

    assert api.get(path).json()["judged"] == [best, worst]
    assert api.get(f"{path}?limit=1").json()["judged"] == [best]
    assert headrace("samples", run).stdout.startswith("judged  reward 0.000 correct  advantage –")
    # Trained answers take their place, until the run has failed.
    written(gateway, run, [answer(1, 1.0)])
    assert api.get(path).json()["judged"] == []
    in_store(lambda store: store.runs.fail(run, "too little to learn from"))
    assert api.get(path).json()["judged"] == [best, worst]
    assert len(api.get(path).json()["samples"]) == 1


def test_judged_answers_are_bounded_and_a_damaged_one_hides_no_other(
    run: str, in_store: InStore
) -> None:
    async def add(store: Store) -> None:
        for task in range(40):
            await store.judged.add(run, [SampledAnswer(**answer(0, 1.0, task=task))])
        assert [sample.task for sample in await store.judged.newest(run)] == list(range(39, 23, -1))
        await store._redis.lpush(run_key(run, "judged"), b"{}")
        assert len(await store.judged.newest(run)) == 15

    in_store(add)


def test_a_run_that_there_is_not_and_limits_out_of_bounds_are_refused(
    api: httpx.Client, run: str
) -> None:
    assert api.get("/v1/runs/nobody/samples").status_code == 404
    for wrong in ("limit=0", "limit=1001", "step=0", "step=x", "cursor=-1"):
        refused = api.get(f"/v1/runs/{run}/samples?{wrong}")
        assert refused.status_code == 422
        assert list(problems(refused)) == [f"query.{wrong.partition('=')[0]}"]


def test_the_api_describes_what_an_answer_is(api: httpx.Client) -> None:
    described = api.get("/openapi.json").json()

    assert "/v1/runs/{run}/samples" in described["paths"]
    answer = described["components"]["schemas"]["SampledAnswer"]["properties"]
    assert all(field["description"] for field in answer.values())


def test_in_a_terminal_the_newest_step_stands_last_and_no_answer_commands_it(
    headrace: Headrace, run: str, gateway: GatewayProcess
) -> None:
    hostile = answer(2, None, completion="\x1b[2J[red]3[/]\x9b1A<eos>", advantage=None)
    written(gateway, run, [answer(1, 1.0), hostile, answer(3, 1.0, own="mine\x1b[2J")])

    shown = headrace("samples", run)

    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.split("\n\n")[0].splitlines() == [
        "step 1  reward 1.000 correct  advantage -0.250  2 tokens, stop  row 7, task 10  version 0",
        "  math 1.000  format 0.500",
        "  math: '3' (unmarked) against '3'",
        "  prompt",
        "    <bos>1+2=",
        "  completion",
        "    3<eos>",
        "  reference",
        "    3",
    ]
    assert "step 2  reward – correct  advantage –" in shown.stdout
    assert "a client's prompt 'mine\\x1b[2J', task 30" in shown.stdout
    assert "\\u001b[2J[red]3[/]\\u009b1A<eos>" in shown.stdout
    assert "\x1b" not in shown.stdout
    newest = headrace("samples", run, "--json", "--step", "2").stdout
    assert json.loads(newest)["samples"] == [hostile]
    assert headrace("samples", run, "--step", "1").stdout.startswith("step 1  reward 1.000")


def test_a_run_without_answers_yet_is_explained_in_words(
    headrace: Headrace, run: str, tmp_path: Path
) -> None:
    shown = headrace("samples", run, "--step", "3")

    assert shown.returncode == 0
    assert shown.stdout.startswith("no answers of step 3: they are kept when they are judged")
    assert headrace("samples", "nobody").returncode == 1


# --- answers of evaluations ---------------------------------------------------------------------


@pytest.fixture
def evaluated(gateway: GatewayProcess, run: str) -> EvaluationRecord:
    """An evaluation of three rows that has ended, with its answers."""
    rows = [
        answered(0, "correct", "correct", category="easy"),
        answered(1, "wrong", "correct", category="hard"),
        AnsweredRow(row=2, prompt="", samples=[], error="the prompt has 65 tokens"),
    ]
    record = EvaluationRecord(
        id="000002-test", run=run, name="test", dataset="sums", step=2, version="aaa:2", samples=2,
        rows=3, answered=3, state="done", asked=1.0, finished=2.0,
        metrics={"accuracy": 0.5, "accuracy_low": 0.1, "accuracy_high": 0.9, "rows": 3},
        categories={"easy": {"accuracy": 1.0, "rows": 1}},
    )  # fmt: skip
    write_part(part_path(folder_of(gateway.data, run, record.id), 1), rows)
    write_result(gateway.data, record)
    return record


def test_answers_of_an_evaluation_are_browsed_by_page_verdict_and_category(
    api: httpx.Client, run: str, evaluated: EvaluationRecord
) -> None:
    path = f"/v1/runs/{run}/evaluations"
    told = evaluated.model_dump(mode="json")
    assert api.get(path).json() == {"run": run, "evaluations": [told], "next": None}
    assert api.get(f"{path}/000002-test").json() == told
    page = api.get(f"{path}/000002-test/answers?limit=2").json()
    assert (page["evaluation"], page["total"]) == (told, 3)
    assert [row["row"] for row in page["rows"]] == [0, 1]
    rest = api.get(f"{path}/000002-test/answers?cursor={page['next']}").json()
    assert ([row["row"] for row in rest["rows"]], rest["next"]) == ([2], None)
    assert page["rows"][1]["samples"][1] | {"components": {}} == {
        "text": "correct 1", "tokens": 11, "truncated": False, "reward": 1.0, "status": "correct",
        "components": {}, "reasons": {"exact": "compared with 1"},
    }  # fmt: skip
    for query, rows in (
        ("verdict=mixed", [1]),
        ("verdict=unscored", [2]),
        ("category=easy", [0]),
        ("row=1", [1]),
    ):
        page = api.get(f"{path}/000002-test/answers?{query}").json()
        assert [row["row"] for row in page["rows"]] == rows, query

    missing = api.get(f"{path}/000009-test")
    assert missing.status_code == 404
    assert "has no evaluation '000009-test'; it has 000002-test" in missing.json()["detail"]
    for bad in (
        "..%2f..",
        "test",
        "000002-test/answers?verdict=good",
        "000002-test/answers?limit=0",
    ):
        assert api.get(f"{path}/{bad}").status_code in (404, 422), bad


def test_a_terminal_shows_evaluations_and_their_answers(
    headrace: Headrace, run: str, evaluated: EvaluationRecord
) -> None:
    told = headrace("evaluations", run, "test", "--verdict", "mixed")
    assert told.returncode == 0, told.stderr
    assert "step 2" in told.stdout
    assert "accuracy 0.500 [0.100, 0.900]" in told.stdout
    assert "prompt 1" in told.stdout
    assert "correct 1" in told.stdout
    assert "correct 0" not in told.stdout
    assert "  exact: compared with 1\n" in told.stdout
    listed = headrace("evaluations", run)
    assert listed.stdout.startswith("000002-test  step 2  3/3 rows  accuracy 0.500")
    assert "easy" in listed.stdout
    unknown = headrace("evaluations", run, "other")
    assert (unknown.returncode, "has no evaluation 'other'" in unknown.stderr) == (1, True)


def test_a_supervised_run_says_why_it_has_no_answers(
    api: httpx.Client, in_store: InStore, headrace: Headrace
) -> None:
    config = {"model": {"path": "m"}, "data": {"dataset": "sums"}}
    run = RunRecord(
        id="c0ffee01", name="tuned", pool="default", kind="sft", state=RunState.QUEUED,
        created=1.0, config=config,
    )  # fmt: skip
    in_store(lambda store: store.runs.submit(run))
    try:
        why = api.get(f"/v1/runs/{run.id}/samples").json()["none_because"]
        assert why.startswith("a supervised run samples no answers: ")
        assert " ".join(headrace("samples", run.id).stdout.split()) == why
    finally:
        api.post(f"/v1/runs/{run.id}/cancel")
