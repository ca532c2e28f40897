"""The help of `headrace`: groups, 80 columns, examples; and the words of other programs."""

from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from headrace.cli import habits
from headrace.cli.main import root

SHORT = 124
"""Characters of a command's sentence that fit into two lines of `headrace --help`."""


def commands(command: Any, words: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        return [(words, command)]
    return [pair for name, each in inner.items() for pair in commands(each, (*words, name))]


ALL = commands(get_command(root))


def shown(*words: str) -> str:
    result = CliRunner().invoke(root, [*words, "--help"], prog_name="headrace")
    assert result.exit_code == 0
    return result.output


def test_help_lists_every_command_in_a_group_on_two_lines_at_most() -> None:
    lines = shown().splitlines()
    groups = ["Begin:", "Data and config:", "Train:", "Results:", "Operate:"]
    assert [line for line in lines if line in groups] == groups
    assert "Commands:" not in lines
    too_long = {
        words: command.short_help
        for words, command in ALL
        if len(words) == 1 and len(command.short_help) > SHORT
    }
    assert too_long == {}


@pytest.mark.parametrize(("words", "command"), ALL, ids=[" ".join(words) for words, _ in ALL])
def test_the_help_of_a_command_wraps_at_80_columns_and_ends_with_an_example(
    words: tuple[str, ...], command: Any
) -> None:
    lines = shown(*words).rstrip().splitlines()
    assert [line for line in lines if len(line) > 80] == []
    begin = lines.index("  Example:")
    examples = [line.strip() for line in lines[begin + 1 :]]
    assert examples
    assert any(example.startswith("headrace " + " ".join(words)) for example in examples)
    assert all(example.startswith("headrace ") for example in examples)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("ls", "runs"),
        ("ps --json", "runs --json"),
        ("list -n 3", "runs -n 3"),
        ("get runs", "runs"),
        ("get a1b2", "show a1b2"),
        ("get run a1b2", "show a1b2"),
        ("describe run a1b2 -o yaml", "show a1b2 -o yaml"),
        ("get datasets", "datasets list"),
        ("describe dataset train", "datasets show train"),
        ("dataset list", "datasets list"),
        ("Worker", "workers"),
        ("delete a1b2", "rm a1b2"),
        ("delete dataset train", "datasets rm train"),
        ("delete key 7", "keys revoke 7"),
        ("stop a1b2 --now", "cancel a1b2 --now"),
        ("kill run a1b2", "cancel a1b2"),
        ("stop worker w1", None),
        ("get worker w1", None),
        ("run grpo", None),
        ("nothing", None),
    ],
)
def test_words_of_other_programs_are_understood(words: str, meant: str | None) -> None:
    understood = habits.understood(words.split())
    assert understood == (meant.split() if meant else None)


def test_an_unknown_command_is_answered_with_a_close_one() -> None:
    for words, hint in (
        ("train grpo", "Did you mean `headrace submit`?"),
        ("run grpo", "Did you mean `headrace submit`?"),
        ("sumbit grpo", "Did you mean `headrace submit`?"),
        ("status", "Did you mean `headrace why`?"),
        ("datasets lst", "Did you mean `headrace datasets list`?"),
    ):
        result = CliRunner().invoke(root, words.split(), prog_name="headrace", terminal_width=200)
        assert result.exit_code == 2
        assert hint in result.output
    assert habits.understood_in_group(["delete", "x"], ["add", "revoke"]) == ["revoke", "x"]
    assert habits.understood_in_group(["ls"], ["add"]) is None


def test_runs_are_listed_with_their_newest_reward_and_asked_for_by_filter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[dict[str, Any]] = []
    record = {
        "id": "a1",
        "name": "mine",
        "kind": "rl",
        "state": "running",
        "step": 3,
        "max_steps": 9,
        "created": 0,
        "disk_bytes": None,
        "reason": "",
        "phase": "trains",
    }
    page = {"runs": [{**record, "reward": 0.25}, {**record, "loss": 1.5}, record], "next": None}

    def get(api: Any, path: str, **params: Any) -> Any:
        asked.append(params)
        return page

    monkeypatch.setattr("headrace.cli.client.Gateway.get", get)
    words = ["runs", "--state", "running", "--tag", "x", "-q", "gsm8k", "-n", "2"]
    result = CliRunner().invoke(root, words)
    assert asked == [{"limit": 3, "state": ["running"], "name": None, "tag": ["x"], "q": "gsm8k"}]
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert [row[5] for row in rows] == ["REWARD", "0.250", "loss 1.500"]
    assert rows[1][-1] == "trains"
    assert "there are more: --limit 0 lists all" in result.stderr


def test_every_suggested_command_exists() -> None:
    names = {words[0] for words, _ in ALL}
    unknown = {meant for meant in habits.SUGGESTED.values() if meant.split()[0] not in names}
    assert unknown == set()


@pytest.mark.parametrize(
    ("format", "printed"),
    [
        (
            "json",
            '[\n  {\n    "name": "a, b",\n    "n": 1\n  },\n'
            '  {\n    "x": [\n      2\n    ]\n  }\n]\n',
        ),
        ("yaml", "- name: a, b\n  n: 1\n- x:\n  - 2\n"),
        ("csv", 'name,n,x\n"a, b",1,\n,,[2]\n'),
    ],
)
def test_an_answer_is_printed_in_the_format_that_was_asked_for(
    format: str, printed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = {"datasets": [{"name": "a, b", "n": 1}, {"x": [2]}], "next": None}
    monkeypatch.setattr("headrace.cli.client.Gateway.get", lambda *_, **__: answer)
    result = CliRunner().invoke(root, ["datasets", "list", "-o", format])
    assert (result.exit_code, result.stdout) == (0, printed)
