"""The `headrace` command as a user runs it, against the real gateway."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from services.contracts.records import RunState
from tests import forked_cli
from tests.integration.gateway.servers import (
    UPLOAD_LIMIT,
    GatewayProcess,
    InStore,
    RedisServer,
    upload,
)

Headrace = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def environment(gateway: GatewayProcess) -> dict[str, str]:
    return os.environ | {"HEADRACE_GATEWAY_URL": gateway.url, "HEADRACE_DATA": str(gateway.data)}


@pytest.fixture
def headrace(environment: dict[str, str], tmp_path: Path) -> Headrace:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return forked_cli.headrace(arguments, environment, tmp_path)

    return run


@pytest.fixture
def headrace_process(environment: dict[str, str], tmp_path: Path) -> Headrace:
    """For commands that compute with torch, whose threads no fork has, or import what a test
    names in PYTHONPATH."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "services.cli", *arguments],
            env=environment | {"PYTHONPATH": os.getcwd()},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            # Merging an adapter imports torch, on a machine that may be busy.
            timeout=200,
        )

    return run


@pytest.fixture
def rows(tmp_path: Path, api: httpx.Client) -> Path:
    """A file of rows, which the dataset `cli-sums` has, too."""
    path = tmp_path / "cli-sums.jsonl"
    path.write_text("".join(f'{{"question": "{n}+1", "answer": "{n + 1}"}}\n' for n in range(40)))
    assert upload(api, "cli-sums", path.read_bytes()).is_success
    return path


def queued(headrace: Headrace, *arguments: str) -> str:
    """Submit and give the new run's id."""
    done = headrace("submit", "grpo", "--set", "data.dataset=cli-sums", *arguments, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    run: str = json.loads(done.stdout)["id"]
    return run


def test_a_dataset_from_add_to_rm(headrace: Headrace, tmp_path: Path) -> None:
    file = tmp_path / "few.csv"
    file.write_text("q,a\nhow many?,3\n")

    added = headrace("datasets", "add", str(file), "--prompt", "q", "--answer", "a")
    shown = headrace("datasets", "show", "few")
    listed = json.loads(headrace("datasets", "list", "--json").stdout)
    removed = headrace("datasets", "rm", "few")

    assert "added few (1 rows" in added.stdout, added.stderr
    assert "prompts are column 'q', answers are column 'a'" in added.stdout
    assert "prompt: how many?" in shown.stdout
    assert "few" in [record["name"] for record in listed]
    assert removed.returncode == 0
    assert headrace("datasets", "show", "few").returncode == 1


def test_the_columns_that_were_guessed_are_said(headrace: Headrace, tmp_path: Path) -> None:
    file = tmp_path / "guessed.csv"
    file.write_text("level,problem\n1,how many?\n")

    added = headrace("datasets", "add", str(file))

    assert added.stdout.splitlines()[-1] == (
        "prompts are column 'problem', and no column was taken for the answer: "
        "--answer COL names one"
    )


@pytest.mark.parametrize(
    ("content", "options", "said"),
    [
        ('{"prompt": "a"}\n{"prompt": \n', (), "line 2 is not JSON"),
        ("", (), "unusable.jsonl is empty: it has no rows"),
        ("\n\n", (), "unusable.jsonl has no rows"),
        ('{"level": 1, "remark": "a"}\n', (), "no column looks like the prompt"),
        (
            '{"question": "a", "level": 1}\n',
            ("--prompt", "questions"),
            "line 1 has no column 'questions' to take the prompt from (did you mean 'question'?); "
            "it has: 'question', 'level'",
        ),
        (
            '{"prompt": "a", "answer": "1"}\n{"prompt": "b"}\n',
            (),
            "line 2 has no column 'answer'; it has: 'prompt'",
        ),
    ],
    ids=["no JSON", "empty", "only blank lines", "no prompt", "no such column", "column missing"],
)
def test_a_file_that_cannot_be_used_is_one_sentence(
    headrace: Headrace, tmp_path: Path, content: str, options: tuple[str, ...], said: str
) -> None:
    file = tmp_path / "unusable.jsonl"
    file.write_text(content)

    refused = headrace("datasets", "add", str(file), *options)

    assert refused.returncode == 1
    assert refused.stderr.startswith(f"error: {said}")
    assert len(refused.stderr.splitlines()) == 1
    assert refused.stdout == ""
    assert headrace("datasets", "show", "unusable").returncode == 1


def test_a_refused_run_lists_its_problems(headrace: Headrace, rows: Path) -> None:
    settings = ("--set", "optimizer.lrr=1", "--set", "model.path=/none")

    refused = headrace("submit", "grpo", "--set", "data.dataset=cli-sum", *settings)

    assert refused.returncode == 1
    lines = refused.stderr.splitlines()
    assert lines[0] == "error: the run was not queued: its config has 3 problems"
    assert "  optimizer.lrr: unknown key; did you mean 'optimizer.lr'?" in lines
    assert "  data.dataset: there is no dataset 'cli-sum'; did you mean 'cli-sums'?" in lines


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("rewards=[{verifier: math, clip: [.nan, 0]}]", "rewards.0.clip.0: nan is not a number"),
        ("training.max_steps=1e400", "training.max_steps: inf is not a number"),
        ("data.system=2024-01-31", "data.system: 2024-01-31 is a date to YAML; quote it"),
    ],
)
def test_values_that_yaml_knows_and_json_does_not_are_refused_by_key(
    headrace: Headrace, setting: str, said: str
) -> None:
    refused = headrace("submit", "grpo", "--set", setting)

    assert refused.returncode == 1
    assert refused.stderr.startswith(f"error: {said}")
    assert len(refused.stderr.splitlines()) == 1


def test_a_place_of_a_list_is_changed_or_refused_by_its_key(
    headrace: Headrace, rows: Path, model: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("data: {dataset: cli-sums}\nrewards: [{verifier: math}]\n")

    for source in ("grpo", str(recipe)):
        common = ("submit", source, "--set", "data.dataset=cli-sums")
        taken = headrace(
            *common, "--set", f"model.path={model}", "--set", "rewards.0.weight=2", "--json"
        )
        refused = headrace(*common, "--set", "rewards.1.weight=2")

        assert taken.returncode == 0, taken.stdout
        record = json.loads(taken.stdout)
        assert [(r["verifier"], r["weight"]) for r in record["config"]["rewards"]] == [("math", 2)]
        assert headrace("cancel", record["id"]).returncode == 0
        assert refused.returncode == 1
        assert "rewards is a list without a place '1': its places are 0 to 0" in refused.stderr


def test_who_submits_a_run_of_agents_is_told_what_plays_its_sessions(
    headrace: Headrace, rows: Path, model: Path
) -> None:
    common = ("submit", "grpo", "--set", "data.dataset=cli-sums", "--set", f"model.path={model}")
    for episode, times in (("single_turn", 0), ("sessions", 1)):
        done = headrace(*common, "--set", f"rollout.episode={episode}")
        assert done.returncode == 0, done.stderr
        run = done.stdout.split("queued grpo as ")[1].split()[0]
        assert done.stdout.count(f"headrace agents {run} -- COMMAND") == times
        assert headrace("cancel", run).returncode == 0


def test_warnings_about_a_config_are_shown_when_it_is_queued(
    headrace: Headrace, rows: Path, model: Path
) -> None:
    data = ("--set", "data.dataset=cli-sums", "--set", f"model.path={model}")

    done = headrace("submit", "grpo", *data, "--set", "algorithm.kl.type=k1")

    assert done.returncode == 0
    said = " ".join(done.stdout.split())
    assert "warning algorithm.kl.type: the gradient of k1 in the loss is zero" in said
    assert "queued grpo as" in said
    run = said.split("queued grpo as ")[1].split()[0]
    assert headrace("cancel", run).returncode == 0


def test_settings_that_exclude_each_other_are_refused_with_the_way_out(
    headrace: Headrace, rows: Path, model: Path
) -> None:
    data = ("--set", "data.dataset=cli-sums", "--set", f"model.path={model}")
    both = ("--set", "algorithm.loss.type=dppo", "--set", "algorithm.correction.type=mask")

    refused = headrace("submit", "grpo", *data, *both)

    assert refused.returncode == 1
    assert refused.stderr.splitlines() == [
        "error: the run was not queued: its config has a problem",
        "  algorithm: loss dppo is taken against the sampler, so correction mask would count the "
        "same ratio twice: set correction.type to none",
    ]
    assert refused.stdout == ""


def test_a_yaml_file_may_name_a_recipe_and_what_changes_it(
    headrace: Headrace, rows: Path, model: Path, tmp_path: Path
) -> None:
    file = tmp_path / "changed.yaml"
    file.write_text(
        "recipe: dr_grpo\n"
        "config: {model: {path: model}, data: {dataset: cli-sums}, training: {seed: 7}}\n"
    )
    done = headrace("submit", str(file), "--set", "training.max_steps=3", "--json")
    assert done.returncode == 0, done.stdout
    record = json.loads(done.stdout)
    training = record["config"]["training"]
    assert (record["name"], training["seed"], training["max_steps"]) == ("changed", 7, 3)
    assert record["recipe"] == "dr_grpo"
    assert headrace("cancel", record["id"]).returncode == 0


def test_a_yaml_file_with_overrides_is_a_recipe(
    headrace: Headrace, rows: Path, model: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "mine.yaml"
    # The folder is named relative to where the user stands.
    recipe.write_text(
        "model: {path: model}\ndata: {dataset: cli-sums}\nrewards: [{verifier: math}]\n"
        "optimizer: {type: adamw, lr: 1.0e-5}\n"
        "algorithm: {advantage: {type: gae}, critic: {path: model}}\n"
    )

    done = headrace("submit", str(recipe), "--set", "training.max_steps=7", "--json")

    assert done.returncode == 0, done.stdout
    record = json.loads(done.stdout)
    assert (record["name"], record["max_steps"]) == ("mine", 7)
    assert record["config"]["model"]["path"] == str(model)
    assert record["config"]["algorithm"]["critic"]["path"] == str(model)
    assert record["config"]["optimizer"]["lr"] == 1e-5
    assert headrace("cancel", record["id"]).returncode == 0


def test_watching_ends_with_the_run_and_tells_how_it_ended(
    headrace: Headrace, rows: Path, model: Path, in_store: InStore
) -> None:
    good, bad = (queued(headrace, "--set", f"model.path={model}") for _ in range(2))
    in_store(lambda store: store.events.add(good, "step", {"step": 1, "reward/mean": 0.25}))
    in_store(lambda store: store.runs.set_state(good, RunState.SUCCEEDED, "1 step"))
    in_store(lambda store: store.runs.set_state(bad, RunState.FAILED, "vLLM did not start"))

    watched, failed = headrace("watch", good), headrace("watch", bad)
    as_json = [json.loads(line) for line in headrace("watch", good, "--json").stdout.splitlines()]

    assert (watched.returncode, failed.returncode) == (0, 1)
    assert watched.stdout.splitlines() == [
        f"grpo ({good})",
        "step 1/200  reward 0.250",
        "succeeded: 1 step",
    ]
    assert failed.stdout.splitlines() == [f"grpo ({bad})", "failed: vLLM did not start"]
    assert as_json[-1]["data"]["state"] == "succeeded"


def test_ctrl_c_ends_the_watching_and_not_the_run(
    headrace: Headrace, rows: Path, model: Path, environment: dict[str, str]
) -> None:
    run = queued(headrace, "--set", f"model.path={model}")
    watching = subprocess.Popen(
        [sys.executable, "-m", "services.cli", "watch", run],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert watching.stdout is not None
    assert run in watching.stdout.readline()
    watching.send_signal(signal.SIGINT)
    _, said = watching.communicate(timeout=100)

    assert watching.returncode == 130
    assert f"goes on; watch it again: headrace watch {run}" in said
    listed = json.loads(headrace("runs", "--json").stdout)
    assert next(record["state"] for record in listed if record["id"] == run) == "queued"
    headrace("cancel", run)


def test_cancelling_again_is_no_error_and_says_so(
    headrace: Headrace, rows: Path, model: Path, in_store: InStore
) -> None:
    queued_run, done = (queued(headrace, "--set", f"model.path={model}") for _ in range(2))
    in_store(lambda store: store.runs.set_state(done, RunState.SUCCEEDED, ""))

    first, again = headrace("cancel", queued_run), headrace("cancel", queued_run)
    over = headrace("cancel", done)

    assert (first.returncode, first.stdout) == (0, f"cancelled grpo ({queued_run})\n")
    assert (again.returncode, again.stdout) == (
        0,
        f"cancelled grpo ({queued_run}) already, nothing to do\n",
    )
    assert (over.returncode, over.stderr) == (
        1,
        f"error: run grpo ({done}) is over: it succeeded\n",
    )


def test_recipes_are_there_without_a_gateway(tmp_path: Path) -> None:
    def recipes(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "services.cli", "recipes", *arguments]
        nowhere = {"PYTHONPATH": os.getcwd(), "HEADRACE_GATEWAY_URL": "http://127.0.0.1:1"}
        return subprocess.run(
            command, env=os.environ | nowhere, capture_output=True, text=True, check=False
        )

    assert "grpo" in recipes().stdout
    assert recipes("grpo").stdout.startswith("# when: ")
    assert json.loads(recipes("grpo", "--json").stdout)["name"] == "grpo"
    assert recipes("grop").stderr.startswith("error: there is no recipe 'grop' (did you mean 'grpo")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/wrong/path", "error: /wrong/path is no folder: name a model's folder in"),
        ("./empty", "error: empty holds no config.json: name a model's folder in"),
        # What has no slash may be a run, whatever folder is called so.
        ("empty", "error: no gateway at http://127.0.0.1:1"),
    ],
)
def test_a_path_to_no_model_is_said_without_asking_the_gateway(
    headrace: Headrace, tmp_path: Path, path: str, said: str
) -> None:
    (tmp_path / "empty").mkdir()

    refused = headrace("chat", path, "hello", "--gateway", "http://127.0.0.1:1")

    assert refused.returncode != 0
    assert refused.stderr.startswith(said)


def test_without_a_gateway_the_way_out_is_named(headrace: Headrace) -> None:
    away = headrace("runs", "--gateway", "http://127.0.0.1:1")

    assert away.returncode == 3
    assert away.stderr.startswith(
        "error: no gateway at http://127.0.0.1:1: start one with `headrace up`"
    )


def test_errors_are_json_where_json_was_asked_for(headrace: Headrace) -> None:
    refused = headrace("cancel", "nothing", "--json")

    assert refused.returncode == 1
    assert json.loads(refused.stdout)["error"].startswith("there is no run 'nothing'; ")


@pytest.mark.parametrize("command", ["runs", "workers", "recipes"])
def test_lists_are_also_json(headrace: Headrace, command: str) -> None:
    assert isinstance(json.loads(headrace(command, "--json").stdout), list)
    assert headrace(command).returncode == 0


def test_logs_are_listed_and_tailed(headrace: Headrace, gateway: GatewayProcess) -> None:
    folder = gateway.data / "logs"
    folder.mkdir(exist_ok=True)
    (folder / "learner.log").write_text("".join(f"line {n}\n" for n in range(100)))

    assert "learner" in headrace("logs").stdout
    assert headrace("logs", "learner", "-n", "2").stdout == "line 98\nline 99\n"
    assert "there is no log of 'lerner'; there is learner" in headrace("logs", "lerner").stderr


def test_an_upload_over_the_limit_is_one_sentence(headrace: Headrace, tmp_path: Path) -> None:
    file = tmp_path / "big.jsonl"
    file.write_text('{"prompt": "1+1", "answer": "2"}\n' * 200_000)

    refused = headrace("datasets", "add", str(file))

    assert refused.returncode == 1
    assert refused.stderr == (
        f"error: the body is over {UPLOAD_LIMIT} bytes: upload a part of it and append the rest "
        "with POST /v1/prompts, or raise the gateway's HEADRACE_UPLOAD_LIMIT\n"
    )


def test_a_variable_that_makes_no_sense_is_one_sentence(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "services.cli", "runs"],
        env=os.environ | {"PYTHONPATH": os.getcwd(), "HEADRACE_POOL": "No Spaces"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 2
    assert ended.stderr.startswith("error: --pool (HEADRACE_POOL): ")
    assert "Traceback" not in ended.stderr


def test_while_redis_is_away_commands_say_so_and_a_watcher_waits_for_it(
    tmp_path: Path, model: Path
) -> None:
    redis_server = RedisServer(tmp_path)
    redis_server.start()
    gateway = GatewayProcess(tmp_path / "data", redis_server.url)
    environment = os.environ | {
        "PYTHONPATH": os.getcwd(),
        "HEADRACE_GATEWAY_URL": gateway.url,
        "HEADRACE_DATA": str(gateway.data),
    }
    command = [sys.executable, "-m", "services.cli"]
    try:
        with httpx.Client(base_url=gateway.url, headers=gateway.headers, timeout=30) as api:
            upload(api, "sums", b'{"prompt": "1+1", "answer": "2"}\n' * 40)
            config = {"model": {"path": str(model)}, "data": {"dataset": "sums"}}
            run = api.post("/v1/runs", json={"recipe": "grpo", "config": config}).json()["id"]
            watching = subprocess.Popen(
                [*command, "watch", run], env=environment, stdout=subprocess.PIPE, text=True
            )
            assert watching.stdout is not None
            assert run in watching.stdout.readline()

            redis_server.stop()
            listed = subprocess.run(
                [*command, "runs"], env=environment, capture_output=True, text=True, check=False
            )
            assert "try" in watching.stdout.readline()
            redis_server.start()
            assert api.post(f"/v1/runs/{run}/cancel").status_code == 202

            assert (listed.returncode, listed.stdout) == (3, "")
            assert listed.stderr.startswith("error: Redis cannot be reached: ")
            assert watching.wait(100) == 1
            assert watching.stdout.read().splitlines()[-1].startswith("cancelled")
            watching.stdout.close()
    finally:
        gateway.stop()
        redis_server.stop()
