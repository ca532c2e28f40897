"""The files, or the hub's dataset, that `headrace datasets add` names."""

from pathlib import Path

import pytest

from headrace.cli.dataset_files import hub_form, with_name
from headrace.cli.output import CliError


@pytest.mark.parametrize(
    ("files", "hub", "expected"),
    [
        (["a.csv"], None, (None, ["a.csv"], None)),
        (["train", "*.parquet"], None, ("train", ["*.parquet"], None)),
        (["a.csv", "b.csv"], None, (None, ["a.csv", "b.csv"], None)),
        (["gsm8k"], "openai/gsm8k", ("gsm8k", [], "openai/gsm8k")),
        (["hf://a/b"], None, (None, [], "hf://a/b")),
        (["sums", "hf://a/b"], None, ("sums", [], "hf://a/b")),
    ],
)
def test_the_first_argument_is_a_name_if_rows_follow(
    files: list[str], hub: str | None, expected: tuple[str | None, list[str], str | None]
) -> None:
    assert with_name(None, files, hub) == expected


def test_a_folder_of_the_name_is_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train").mkdir()
    assert with_name(None, ["train", "more"], None) == (None, ["train", "more"], None)


@pytest.mark.parametrize(
    ("files", "hub", "problem"),
    [([], None, "--hub ORG/NAME"), (["a.csv"], "a/b", "are two sources: name one")],
)
def test_no_source_and_two_sources_are_refused(
    files: list[str], hub: str | None, problem: str
) -> None:
    with pytest.raises(CliError, match=problem):
        with_name(None, files, hub)


def test_options_of_the_hub_become_one_name() -> None:
    assert hub_form(None, None, None, None) == {}
    assert hub_form("a/b", None, None, None) == {"hub": "a/b"}
    assert hub_form("a/b", "v1", "main", None) == {"hub": "a/b@v1/main/train"}
    assert hub_form("a/b", None, None, "test") == {"hub": "a/b/test"}
    with pytest.raises(CliError, match="--split is of a dataset of the hub"):
        hub_form(None, None, None, "test")
