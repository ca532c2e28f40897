"""Wrong usage ends a command with code 2 before anything is started."""

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from headrace.cli import output
from headrace.cli.main import root
from headrace.cli.output import CliError, reason_cell, refusal, show_error, table
from headrace.console import EscapingConsole


@pytest.mark.parametrize("flag", ["--only", "--without"])
def test_an_unknown_part_ends_the_command_with_code_2(flag: str) -> None:
    result = CliRunner().invoke(root, ["up", flag, "gateway,lerner"])
    assert isinstance(result.exception, CliError)
    assert result.exception.code == 2
    assert result.exception.message.startswith("unknown part lerner: the parts are gateway,")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("submit grpo --model a/b", "`--set model.path=a/b`"),
        ("submit grpo --dataset=sums", "`--set data.dataset=sums`"),
        ("submit grpo --lr 1e-6", "`--set optimizer.lr=1e-6`"),
        ("submit grpo --learning-rate", "`--set optimizer.lr=VALUE`"),
        ("submit grpo --num-steps 5", "`--set training.max_steps=5`"),
        ("submit grpo --epochs 2", "`--set training.epochs=2`"),
        ("submit grpo --optimizer.lr 2", "`--set optimizer.lr=2`"),
        ("submit grpo --batch-size 8", "`--set algorithm.prompts_per_step=VALUE` or"),
        ("resume a1 --max-steps 9", "`--set training.max_steps=9`"),
        ("preview sums --template x", "`--set data.template=x`"),
        ("submit grpo --prio 1", "--priority"),
        ("submit grpo --nothing", "No such option: --nothing"),
        ("--gateway http://a:1 runs", "goes behind it: headrace runs --gateway"),
        ("--json datasets", "No such option: --json"),
        ("datasets --gateway http://a:1 list", "headrace datasets list --gateway"),
        ("--gateway http://a:1", "goes behind it: headrace COMMAND --gateway"),
        ("--nothing runs", "No such option: --nothing"),
    ],
)
def test_an_unknown_option_is_answered_with_its_set_or_its_place(words: str, hint: str) -> None:
    result = CliRunner().invoke(root, words.split(), prog_name="headrace", terminal_width=300)
    assert result.exit_code == 2
    assert hint in " ".join(result.output.replace("│", " ").split())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("show", "Missing argument 'RUN'. Its id, the beginning of its id, or its name. `headrace"),
        ("runs --limit many", "'--limit' / '-n': It must be a whole number."),
        ("chat x y --temperature warm", "'--temperature': It must be a number."),
        ("runs -o xml", "'-o': 'xml' is not one of 'table', 'json', 'yaml', 'csv'."),
        ("chat x y --temperature 11", "It must be less than or equal to 10"),
    ],
)
def test_a_wrong_argument_is_answered_with_what_it_must_be(words: str, sentence: str) -> None:
    result = CliRunner().invoke(root, words.split(), prog_name="headrace", terminal_width=300)
    assert result.exit_code == 2
    assert sentence in " ".join(result.output.split())


def test_a_row_to_score_on_is_a_row_of_a_named_dataset() -> None:
    result = CliRunner().invoke(root, ["score", "math", "train", "--row", "0", "--answer", "9"])
    assert isinstance(result.exception, CliError)
    assert result.exception.code == 2
    assert result.exception.message == "--row 0 is a row of a dataset: name it with --dataset"


def test_the_only_command_of_a_group_needs_no_name() -> None:
    assert CliRunner().invoke(root, ["config"]).output.startswith('{\n  "$schema": ')


def test_long_texts_of_a_dataset_are_cut_with_the_way_to_print_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = {"name": "d", "id": "a1", "rows": 1, "segments": [], "source": "f", "defaults": None}
    row = {"index": 0, "prompt": "x" * 601, "answer": "y" * 600, "columns": {}}
    findings: dict[str, Any] = {
        "state": "counted",
        "counts": None,
        "references": [],
        "tokens": None,
    }
    answers = iter([record, {**findings, "problem": None}, {"rows": [row]}])
    monkeypatch.setattr("headrace.cli.client.Gateway.get", lambda *_, **__: next(answers))
    shown = "".join(CliRunner().invoke(root, ["datasets", "show", "d"]).output.split("\n"))
    assert "x" * 600 + " … and 1 character more" in shown
    assert "y" * 600 in shown
    assert "long texts are cut: -o json prints them whole" in shown


@pytest.mark.parametrize("value", ["{a: 1, a: 2}", "[1"])
def test_a_task_setting_without_a_value_or_with_a_repeated_key_is_refused(value: str) -> None:
    result = CliRunner().invoke(root, ["datasets", "gym", "chain_sum", "--set", f"terms={value}"])
    assert isinstance(result.exception, CliError)
    assert result.exception.message.startswith(f"--set terms: {value!r} is not a YAML value")


@pytest.mark.parametrize("command", [["recipes"], ["recipes", "--json"], ["--version"], ["-h"]])
def test_an_unwritable_output_is_reported_in_one_line(command: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        said = subprocess.run(
            [sys.executable, "-m", "headrace", *command],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (said.returncode, said.stderr) == (
        1,
        "error: the output cannot be written: No space left on device; make room, or write "
        "elsewhere\n",
    )


def test_a_backup_replaces_files_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path, tmp_path / "pipe"):
        asked = ["backup", str(place), "--data", str(tmp_path)]
        result = CliRunner().invoke(root, asked)
        assert isinstance(result.exception, CliError)
        assert "is no file: name one that is new" in result.exception.message


def test_every_command_takes_json_except_those_that_the_readme_names() -> None:
    def without(command: Any, name: str) -> list[str]:
        if hasattr(command, "commands"):
            found = [without(one, f"{name} {word}") for word, one in command.commands.items()]
            return [line for lines in found for line in lines]
        options = [option for one in command.params for option in one.opts]
        return [] if "--json" in options else [name.strip()]

    assert without(get_command(root), "") == ["up", "keys link", "keys revoke"]


def test_an_error_of_several_lines_is_printed_in_lines(capsys: pytest.CaptureFixture[str]) -> None:
    show_error(refusal(ValueError("it is lost\n  run a\x1b\n    headrace recover")), as_json=False)
    assert capsys.readouterr().err == ("error: it is lost\n  run a\\u001b\n    headrace recover\n")


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_a_table_on_a_terminal_of_any_width_cuts_no_id(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.StringIO()
    console = EscapingConsole(file=shown, width=width, force_terminal=True, no_color=True)
    monkeypatch.setattr(output, "out", console)
    row = ("36495edf", "[bold]demo-6b0a6bb7-rl on demo-test[/]", "succeeded", "because " * 9)
    table(("ID", "NAME", "STATE", "REASON"), [row], "")
    assert "36495edf" in shown.getvalue()
    assert "demo-6b0a6bb7-rl on demo-test" in shown.getvalue()
    assert shown.getvalue().count("because") == 9


def test_a_reason_of_several_lines_has_one_line_in_a_table() -> None:
    assert reason_cell("vLLM ended\n  its log: [red]\n  more") == "vLLM ended …"
    assert reason_cell("of [one] line") == r"of \[one] line"
    assert reason_cell("") == ""
