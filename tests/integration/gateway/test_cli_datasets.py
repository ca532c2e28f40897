"""`headrace datasets` as a user runs it, against the real gateway."""

import json
from pathlib import Path

import pytest

from tests.integration.gateway.servers import UPLOAD_LIMIT, Headrace


def test_a_dataset_from_add_to_rm(headrace: Headrace, tmp_path: Path) -> None:
    file = tmp_path / "few.csv"
    file.write_text("q,a\nhow many?,3\n")

    added = headrace("datasets", "add", str(file), "--prompt", "q", "--answer", "a")
    again = headrace("datasets", "add", str(file), "--prompt", "q", "--answer", "a")
    shown = headrace("datasets", "show", "few")
    listed = json.loads(headrace("datasets", "list", "--json").stdout)
    removed = headrace("datasets", "rm", "few")

    assert "added few (1 row, id" in added.stdout, added.stderr
    assert again.stdout.startswith("there already: few (1 row, id")
    assert "prompts are column 'q', answers are column 'a'" in added.stdout
    assert "prompts have 9 to 9 characters (row 0 is the longest)" in shown.stdout
    assert "prompt: how many?" in shown.stdout
    assert "few" in [record["name"] for record in listed]
    assert removed.returncode == 0
    assert headrace("datasets", "show", "few").returncode == 1


def test_the_upload_prints_the_guessed_columns(headrace: Headrace, tmp_path: Path) -> None:
    file = tmp_path / "guessed.csv"
    file.write_text("level,problem\n1,how many?\n")

    added = headrace("datasets", "add", str(file))

    assert added.stdout.splitlines()[1] == (
        "prompts are column 'problem', and no column was taken for the answer: "
        "--answer COL names one"
    )


def test_files_of_a_pattern_are_added_together_with_what_was_read_of_them(
    headrace: Headrace, tmp_path: Path
) -> None:
    for number in range(2):
        text = f"instruction;input;output;level\nadd;{number}+1;{number + 1};1\n"
        (tmp_path / f"alpaca-{number:05}-of-00003.csv").write_text(text)

    added = headrace("datasets", "add", str(tmp_path / "alpaca-*.csv"))
    missing = headrace("datasets", "add", str(tmp_path / "no-*.csv"))
    folder = tmp_path / "folder"
    folder.mkdir()
    for number in (10, 2):
        (folder / f"part-{number}.csv").write_text(f"question\n{number}\n")
    (folder / "README.md").write_text("Questions.")
    whole = headrace("datasets", "upload", "numbered", str(folder))
    parts = json.loads(headrace("datasets", "show", "numbered", "--json").stdout)["preview"]

    assert added.returncode == 0, added.stderr
    first, *lines = added.stdout.splitlines()
    assert first.startswith("added alpaca (2 rows")
    assert lines[:3] == [
        "prompts are columns 'instruction' and 'input', joined by a blank line, answers are column "
        "'output'",
        "in neither prompt nor answer: 'level'",
        "the cells are separated by semicolons",
    ]
    assert lines[3].startswith("warning the files alpaca-…-of-00003 are 3, and 1 of them")
    assert [row["prompt"] for row in parts] == ["2", "10"]
    assert whole.stderr.endswith(f"left out of {folder}: README.md\n")
    assert missing.stderr.endswith(
        "no-*.csv does not exist: name a .jsonl, .json, .csv, .parquet or .tar file\n"
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


def test_an_upload_over_the_limit_is_one_sentence(headrace: Headrace, tmp_path: Path) -> None:
    file = tmp_path / "big.jsonl"
    file.write_text('{"prompt": "1+1", "answer": "2"}\n' * 200_000)

    refused = headrace("datasets", "add", str(file))

    assert refused.returncode == 1
    assert refused.stderr == (
        f"error: the body is over {UPLOAD_LIMIT} bytes: upload a part of it and append the rest "
        "with POST /v1/prompts, or raise the gateway's HEADRACE_UPLOAD_LIMIT\n"
    )
