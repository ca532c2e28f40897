"""The `headrace` command as a user runs it, against the real gateway."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from headrace.cli.main import root
from headrace.death_signal import die_with
from services.contracts.records import RunState
from tests.integration.gateway.servers import (
    GatewayProcess,
    Headrace,
    InStore,
    RedisServer,
    queued,
    upload,
)


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
    # No answer of it was judged.
    assert failed.stderr.splitlines() == [
        f"its log: headrace logs {bad} --level warning",
        f"run it again with a key changed: headrace resume {bad} --set KEY=VALUE",
    ]
    assert as_json[-1]["data"]["state"] == "succeeded"


def test_ctrl_c_ends_the_watching_and_not_the_run(
    headrace: Headrace, rows: Path, model: Path, environment: dict[str, str]
) -> None:
    run = queued(headrace, "--set", f"model.path={model}")
    watching = subprocess.Popen(
        [sys.executable, "-m", "headrace", "watch", run],
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


def test_cancelling_again_succeeds_with_a_note(
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
        command = [sys.executable, "-m", "headrace", "recipes", *arguments]
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
        # A name without a slash may be a run, even if a folder has that name.
        ("empty", "error: no gateway at http://127.0.0.1:1"),
    ],
)
def test_a_path_without_a_model_is_refused_before_the_gateway_is_asked(
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


def test_json_commands_print_errors_as_json(headrace: Headrace) -> None:
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


@pytest.mark.parametrize("command", ["chat x@1 hi", "export x out", "agents x -- true"])
def test_the_folder_of_data_chooses_the_key(
    gateway: GatewayProcess, tmp_path: Path, command: str
) -> None:
    """HEADRACE_DATA names another installation, with another key."""
    words = command.replace("out", str(tmp_path / "out")).split()
    other = {"HEADRACE_DATA": str(tmp_path), "HEADRACE_GATEWAY_URL": gateway.url}
    (tmp_path / "api-key").write_text("hr-of-another-installation\n")
    said = []
    for data in (gateway.data, tmp_path):
        options = [words[0], "--data", str(data), *words[1:]]
        said.append(str(CliRunner().invoke(root, options, env=other).exception))

    assert "there is no run 'x'" in said[0]
    assert "API key" in said[1]


def test_a_log_that_begins_anew_is_followed_into_its_new_file(tmp_path: Path) -> None:
    """As a worker's when it starts another vLLM."""
    log = tmp_path / "logs" / "vllm-w.log"
    log.parent.mkdir()
    log.write_text("the first start\nits last line\n")
    command = [sys.executable, "-m", "headrace", "logs", "vllm-w", "-n", "1", "--follow"]
    with subprocess.Popen(
        [*command, "--data", str(tmp_path)],
        env=os.environ | {"PYTHONPATH": os.getcwd(), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=die_with(os.getpid()),
    ) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "its last line\n"
        log.rename(log.with_name("vllm-w.log.1"))
        log.write_text("new\n")
        assert following.stdout.readline() == "new\n"
        following.send_signal(signal.SIGINT)
        assert following.wait(60) == 130


def test_a_variable_that_makes_no_sense_is_one_sentence(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "headrace", "runs"],
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
    command = [sys.executable, "-m", "headrace"]
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
