"""Trained groups over HTTP and in a terminal: found, read token by token, downloaded, deleted."""

import io
import json
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest

from services.contracts.records import RunState
from tests.integration.gateway.servers import GatewayProcess, Headrace, InStore, problems
from tests.kept_rollouts import answer, keep

pytestmark = pytest.mark.usefixtures("sums")
ROWS = [
    answer(1, 10, 0, reward=0.0, status="wrong", completion="so 4"),
    answer(1, 10, 1, reward=None, status="error", trained=False, learner_logprobs=None),
    answer(2, 11, 0, token_ids=[2, 3, 4, 5], learner_logprobs=[-0.75, -0.5, -0.5, -0.5]),
]


@pytest.fixture
def run(submit: Any, gateway: GatewayProcess) -> str:
    """A run with three kept answers."""
    id: str = submit().json()["id"]
    keep(gateway.data / "runs" / id, ROWS)
    return id


def test_trained_answers_are_filtered_and_paged(api: httpx.Client, run: str) -> None:
    path = f"/v1/runs/{run}/rollouts"
    listed = api.get(path).json()
    assert (listed["run"], listed["next"], listed["damaged"]) == (run, None, [])
    assert listed["none_because"] is None
    assert [(row["step"], row["group"], row["sample"]) for row in listed["rollouts"]] == [
        (2, 11, 0), (1, 10, 0), (1, 10, 1),
    ]  # fmt: skip
    assert listed["rollouts"][0] == {
        "step": 2, "group": 11, "sample": 0, "row": 7, "dataset": "", "own": None, "reward": 1.0,
        "advantage": 0.25, "components": {"math": 1.0}, "status": "correct",
        "finish_reason": "stop", "trained": True, "length": 4, "turns": None, "versions": [1],
        "prompt": "<bos>1+2=", "completion": " 3€<eos>",
    }  # fmt: skip
    for query, found in (
        ("step=1&min_reward=0", [0]),
        ("status=untrained", [1]),
        ("text=SO", [0]),
        ("min_tokens=3&row=7", [0]),
        ("row=8", []),
    ):
        answered = api.get(f"{path}?{query}").json()
        assert [row["sample"] for row in answered["rollouts"]] == found, query
        assert answered["none_because"] == (None if found else "no trained answers fit"), query
    first = api.get(f"{path}?limit=1").json()
    second = api.get(f"{path}?limit=5&cursor={first['next']}").json()
    assert first["rollouts"] + second["rollouts"] == listed["rollouts"]


@pytest.mark.parametrize(
    "wrong",
    ["step=0", "status=good", "limit=0", "limit=201", "cursor=x", "text=", "min_tokens=-1",
     "row=99999999999999999999", "min_reward=x", "stpe=1"],
)  # fmt: skip
def test_a_filter_that_makes_no_sense_is_refused_by_name(
    api: httpx.Client, run: str, wrong: str
) -> None:
    refused = api.get(f"/v1/runs/{run}/rollouts?{wrong}")
    assert refused.status_code == 422
    assert list(problems(refused)) == [f"query.{wrong.partition('=')[0]}"]


def test_a_group_comes_whole_with_its_tokens(api: httpx.Client, run: str) -> None:
    group = api.get(f"/v1/runs/{run}/rollouts/2/11").json()
    assert (group["prompt_tokens"], group["reference"]) == (["<bos>", "1+2="], "3")
    (sample,) = group["samples"]
    assert sample["tokens"] == [" 3", "", "€", "<eos>"]
    assert sample["learner_logprobs"] == [-0.75, -0.5, -0.5, -0.5]
    assert sample["versions"] == [{"start": 0, "end": 4, "version": 1}]
    missing = api.get(f"/v1/runs/{run}/rollouts/2/12")
    assert missing.status_code == 404
    assert f"/v1/runs/{run}/rollouts?step=2" in missing.json()["detail"]
    assert api.get("/v1/runs/nobody/rollouts").status_code == 404


def test_a_step_is_downloaded_as_parquet_also_of_several_ranks(
    api: httpx.Client, run: str, gateway: GatewayProcess
) -> None:
    path = f"/v1/runs/{run}/rollouts/1"
    one = api.get(path)
    assert one.headers["content-type"] == "application/vnd.apache.parquet"
    assert one.headers["content-disposition"] == f'attachment; filename="{run}-step-1.parquet"'
    assert pq.read_table(io.BytesIO(one.content)).column("completion").to_pylist() == [
        "so 4", " 3<eos>",
    ]  # fmt: skip
    keep(gateway.data / "runs" / run, [answer(1, 12, 0)], rank=1)
    both = pq.read_table(io.BytesIO(api.get(path).content))
    assert both.column("group").to_pylist() == [10, 10, 12]
    assert api.get(f"/v1/runs/{run}/rollouts/9").status_code == 404


def test_a_damaged_part_is_named_and_the_others_are_shown(
    api: httpx.Client, run: str, gateway: GatewayProcess, headrace: Headrace
) -> None:
    part = gateway.data / "runs" / run / "rollouts" / "part-00000002-rank-0000.parquet"
    part.write_bytes(b"PAR1 no more")

    listed = api.get(f"/v1/runs/{run}/rollouts").json()

    assert [row["step"] for row in listed["rollouts"]] == [1, 1]
    assert listed["damaged"] == [part.name]
    group = api.get(f"/v1/runs/{run}/rollouts/2/11").json()
    assert (group["samples"], group["damaged"]) == ([], [part.name])
    assert (
        f"warning: {part.name} of the run's rollouts is damaged" in headrace("rollouts", run).stderr
    )


def test_a_deleted_run_has_no_rollouts(
    api: httpx.Client, run: str, gateway: GatewayProcess, in_store: InStore
) -> None:
    in_store(lambda store: store.runs.set_state(run, RunState.FAILED, "over"))
    assert api.delete(f"/v1/runs/{run}").status_code == 204
    assert not (gateway.data / "runs" / run).exists()
    assert api.get(f"/v1/runs/{run}/rollouts").status_code == 404


def test_a_terminal_lists_answers_and_shows_a_group_down_to_its_tokens(
    headrace: Headrace, run: str, tmp_path: Path
) -> None:
    listed = headrace("rollouts", run, "--min-reward", "0")
    assert [" ".join(line.split()) for line in listed.stdout.splitlines()] == [
        "step group/answer row reward advantage status tokens end completion",
        "2 11/0 7 1.000 0.250 correct 4 stop 3€<eos>",
        "1 10/0 7 0.000 0.250 wrong 2 stop so 4",
    ]
    assert headrace("rollouts", run, "--group", "10").stdout.splitlines() == [
        "step 1  group 10  row 7",
        "  prompt",
        "    <bos>1+2=",
        "  reference",
        "    3",
        "  answer 0  reward 0.000 wrong  advantage 0.250  2 tokens, stop  version 0",
        "  math: '3' against '3'",
        "    so 4",
        "  answer 1  reward – error  advantage 0.250  2 tokens, stop  version 0  not in the loss",
        "  math: '3' against '3'",
        "     3<eos>",
        "",
    ]
    tokens = headrace("rollouts", run, "--group", "11", "--tokens").stdout.splitlines()
    assert [" ".join(line.split()) for line in tokens[-6:-3]] == [
        "token sampler learner gap entropy version text",
        "0 -0.500 -0.750 -0.250 0.125 1 3",
        "1 -0.500 -0.500 0.000 0.125 1",
    ]
    rows = headrace("rollouts", run, "--limit", "1", "-o", "csv").stdout.splitlines()
    assert [row.split(",")[:3] for row in rows] == [["step", "group", "sample"], ["2", "11", "0"]]
    whole = json.loads(headrace("rollouts", run, "--group", "11", "--json").stdout)
    assert whole["samples"][0]["completion"] == " 3€<eos>"
    file = tmp_path / "step.parquet"
    assert headrace("rollouts", run, "--step", "2", "--out", str(file)).returncode == 0
    assert pq.read_table(file).column("group").to_pylist() == [11]
    refused = headrace("rollouts", run, "--tokens")
    assert (refused.returncode, "--group" in refused.stderr) == (1, True)
    assert "no trained answers fit" in headrace("rollouts", run, "--row", "9").stdout
