"""A run's metrics and events: read, followed, resumed."""

import json
from typing import Any

import httpx
import pytest

from services.contracts.records import RunState
from services.store import Store
from tests.integration.gateway.servers import GatewayProcess, Headrace, InStore, events_of

pytestmark = pytest.mark.usefixtures("sums")


def test_metrics_are_what_the_learner_wrote_after_a_step(
    api: httpx.Client, submit: Any, gateway: GatewayProcess
) -> None:
    run = submit().json()["id"]
    assert api.get(f"/v1/runs/{run}/metrics").json() == {"run": run, "metrics": [], "next": None}
    folder = gateway.data / "runs" / run
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"step": n, "reward/mean": n / 10} for n in (1, 2, 3)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(text + '{"step": 4, "rew')

    assert api.get(f"/v1/runs/{run}/metrics").json()["metrics"] == rows
    assert api.get(f"/v1/runs/{run}/metrics?after_step=2").json()["metrics"] == rows[2:]
    first = api.get(f"/v1/runs/{run}/metrics?limit=2").json()
    rest = api.get(f"/v1/runs/{run}/metrics?cursor={first['next']}").json()
    assert (first["metrics"], rest["metrics"], rest["next"]) == (rows[:2], rows[2:], None)
    assert api.get(f"/v1/runs/{run}/metrics?limit=100000").status_code == 422


def test_one_metric_is_sent_without_the_others(
    api: httpx.Client, submit: Any, gateway: GatewayProcess
) -> None:
    run = submit().json()["id"]
    folder = gateway.data / "runs" / run
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"step": 1, "a": 1, "b": 2}, {"evaluation/step": 1, "c": 3}, {"step": 2, "b": 4}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    metrics = api.get(f"/v1/runs/{run}/metrics?name=a&name=c").json()["metrics"]

    assert metrics == [{"step": 1, "a": 1}, {"evaluation/step": 1, "c": 3}]


def test_events_come_in_order_resume_after_the_last_one_and_end_with_the_run(
    api: httpx.Client, submit: Any, in_store: InStore
) -> None:
    run = submit().json()["id"]

    async def train(store: Store) -> None:
        for step in (1, 2, 3):
            await store.events.add(run, "step", {"step": step, "reward/mean": 0.5})

    in_store(train)
    in_store(lambda store: store.runs.set_state(run, RunState.SUCCEEDED, "3 steps"))

    seen = list(events_of(api, run))
    steps = [(kind, event["data"]["step"]) for kind, event in seen if kind == "step"]
    second = next(event["id"] for _, event in seen if event["data"].get("step") == 2)
    rest = [event["data"] for _, event in events_of(api, run, after=second)]

    assert steps == [("step", 1), ("step", 2), ("step", 3)]
    assert seen[-1][1]["data"] == {"state": "succeeded", "reason": "3 steps"}
    assert rest == [{"step": 3, "reward/mean": 0.5}, {"state": "succeeded", "reason": "3 steps"}]


def test_a_follower_may_begin_with_the_newest_events(
    api: httpx.Client, submit: Any, in_store: InStore
) -> None:
    run = submit().json()["id"]

    async def train(store: Store) -> None:
        for step in range(1, 6):
            await store.events.add(run, "step", {"step": step})
        await store.runs.set_state(run, RunState.SUCCEEDED, "")

    in_store(train)

    for newest, steps in ((0, []), (3, [4, 5]), (9, [1, 2, 3, 4, 5])):
        seen = events_of(api, run, newest=newest)
        assert [event["data"]["step"] for kind, event in seen if kind == "step"] == steps


def test_a_follower_sees_what_happens_while_it_follows(
    api: httpx.Client, submit: Any, in_store: InStore
) -> None:
    run = submit().json()["id"]
    in_store(lambda store: store.events.add(run, "step", {"step": 1}))
    stream = events_of(api, run)
    seen = [next(stream)]
    while seen[-1][0] != "step":
        seen.append(next(stream))

    in_store(lambda store: store.events.add(run, "warning", {"message": "all rewards are zero"}))
    assert next(stream)[1]["data"] == {"message": "all rewards are zero"}
    api.post(f"/v1/runs/{run}/cancel")
    assert [event["data"]["state"] for _, event in stream] == ["cancelled"]


def test_events_of_an_unknown_run_or_after_nonsense_are_refused(
    api: httpx.Client, submit: Any
) -> None:
    run = submit().json()["id"]

    assert api.get("/v1/runs/none/events").status_code == 404
    for id in ("x", "1-", "9" * 20, "9" * 5000):
        nonsense = api.get(f"/v1/runs/{run}/events", headers={"Last-Event-ID": id})
        assert nonsense.status_code == 422


def test_series_of_several_runs_are_cut_into_buckets_and_sent_once(
    api: httpx.Client, submit: Any, gateway: GatewayProcess
) -> None:
    runs = [submit(name=name).json()["id"] for name in ("one", "two")]
    for run, steps in zip(runs, (40, 3), strict=True):
        folder = gateway.data / "runs" / run
        folder.mkdir(parents=True, exist_ok=True)
        rows = [{"step": n, "a": n / 7, "time": 1e9 + n} for n in range(1, steps + 1)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    wanted: dict[str, Any] = {"runs": [runs[0], "two"], "names": ["a", "missing"], "points": 5}

    answer = api.get("/v1/series", params=wanted)
    again = api.get("/v1/series", params=wanted, headers={"If-None-Match": answer.headers["etag"]})
    zoomed = api.get("/v1/series", params={**wanted, "from": 38, "to": 39}).json()["series"]

    long, short = answer.json()["series"]
    assert long["run"] == runs[0]
    assert long["x"] == [10, 20, 30, 40]
    assert long["mean"] == [0.78571, 2.2143, 3.6429, 5.0714]
    assert (long["min"][0], long["max"][0], long["count"]) == (0.14286, 1.4286, [10] * 4)
    values = {"x": [1, 2, 3], "mean": [0.14286, 0.28571, 0.42857]}
    assert short == {"run": runs[1], "name": "a", "min": None, "max": None, "count": None, **values}
    assert [(part["x"], part["mean"]) for part in zoomed] == [([38, 39], [5.4286, 5.5714])]
    assert (again.status_code, again.content) == (304, b"")
    with (gateway.data / "runs" / runs[1] / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "a": 1, "b": null}\n')
    changed = api.get(
        "/v1/series", params=wanted, headers={"If-None-Match": answer.headers["etag"]}
    )
    assert changed.json()["series"][1]["mean"][3:] == [1]
    newest = api.get(f"/v1/runs/{runs[1]}/series/names").json()
    assert newest == {
        "run": runs[1],
        "names": [
            {"name": "a", "step": 4, "value": 1, "count": 4},
            {"name": "b", "step": 4, "value": None, "count": 0},
        ],
    }


@pytest.mark.parametrize(
    ("query", "status", "word"),
    [
        ("runs=nowhere&names=a", 404, "'nowhere'"),
        ("names=a", 422, "runs"),
        ("runs=one&names=a&x=epoch", 422, "epoch"),
        ("runs=one&names=a&points=0", 422, "points"),
        ("runs=one&names=a&from=nan", 422, "from"),
    ],
)
def test_series_that_cannot_be_drawn_are_refused_by_name(
    api: httpx.Client, submit: Any, query: str, status: int, word: str
) -> None:
    answer = api.get(f"/v1/series?{query}")
    assert answer.status_code == status
    assert word in answer.json()["detail"]


def test_headrace_metrics_prints_exact_values_by_step(
    api: httpx.Client, submit: Any, gateway: GatewayProcess, headrace: Headrace
) -> None:
    run = submit().json()["id"]
    folder = gateway.data / "runs" / run
    folder.mkdir(parents=True, exist_ok=True)
    of_set = {"evaluation/step": 1, "evaluation/name": "gsm8k", "evaluation/accuracy": 0.25}
    rows = [{"step": 1, "time": 5.0, "a/b": 0.1234567891}, {"step": 2, "a/b": None, "c": 1}]
    text = "".join(json.dumps(row) + "\n" for row in [*rows, of_set])
    (folder / "metrics.jsonl").write_text(text)

    listed = json.loads(headrace("metrics", run, "--json").stdout)
    values = headrace("metrics", run, "evaluation/*/accuracy", "a/b", "--json")
    wrong = headrace("metrics", run, "a/c")

    assert [(m["name"], m["value"]) for m in listed] == [
        ("a/b", None),
        ("c", 1),
        ("evaluation/gsm8k/accuracy", 0.25),
    ]
    accuracy = "evaluation/gsm8k/accuracy"
    assert json.loads(values.stdout) == [
        {"step": 1, "time": 5.0, accuracy: 0.25, "a/b": 0.1234567891},
        {"step": 2, "time": None, accuracy: None, "a/b": None},
    ]
    assert "no metric 'a/c' (did you mean 'a/b'?)" in wrong.stderr
