"""Which files of a hub's repository are a config and a split."""

import pytest

from services.datasets import DatasetError
from services.datasets.hub_files import HubFile, HubReference, choose_split, hub_reference

CONVERTED = ("main/train/0000.parquet", "main/test/0000.parquet", "socratic/train/0000.parquet")
PUSHED = (
    "README.md",
    "data/train_sft-00001-of-00002-0123456789abcdef.parquet",
    "data/train_sft-00000-of-00002-0123456789abcdef.parquet",
    "data/test_sft-00000-of-00001-0123456789abcdef.parquet",
)
PLAIN = ("train.jsonl", "train.csv", "test.jsonl", "dataset_infos.json")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("openai/gsm8k", HubReference("openai/gsm8k")),
        ("hf://openai/gsm8k@abc", HubReference("openai/gsm8k", "abc")),
        ("hf://datasets/openai/gsm8k/test", HubReference("openai/gsm8k", split="test")),
        ("hf://a/b@v1/main/test", HubReference("a/b", "v1", "main", "test")),
    ],
)
def test_a_reference_names_revision_config_and_split(text: str, expected: HubReference) -> None:
    assert hub_reference(text) == expected


@pytest.mark.parametrize(
    "text", ["gsm8k", "hf://a/b/c/d/e", "a/b?x", "hf://../../x y", "../..", "a/.."]
)
def test_another_text_is_no_reference(text: str) -> None:
    with pytest.raises(DatasetError, match="is no name on the hub"):
        hub_reference(text)


@pytest.mark.parametrize(
    ("text", "paths", "config", "split", "taken"),
    [
        ("a/b", CONVERTED, "main", "train", ["main/train/0000.parquet"]),
        ("a/b/test", CONVERTED, "main", "test", ["main/test/0000.parquet"]),
        ("a/b/socratic/train", CONVERTED, "socratic", "train", [CONVERTED[2]]),
        ("a/b/train_sft", PUSHED, "default", "train_sft", [PUSHED[2], PUSHED[1]]),
        ("a/b", PLAIN, "default", "train", ["train.jsonl"]),
        ("a/b", ["x/partial-train/0000.parquet"], "x", "train", ["x/partial-train/0000.parquet"]),
        ("a/b", ["rows.csv"], "default", "train", ["rows.csv"]),
    ],
)
def test_the_files_of_a_split_are_found_by_their_paths(
    text: str, paths: list[str], config: str, split: str, taken: list[str]
) -> None:
    chosen = choose_split(hub_reference(text), [HubFile(path, None, None) for path in paths])

    assert (chosen.config, chosen.split) == (config, split)
    assert [file.path for file in chosen.files] == taken
    assert bool(chosen.notes) == ("train.csv" in paths or "partial-train" in paths[0])


@pytest.mark.parametrize(
    ("text", "paths", "problem"),
    [
        ("a/b/dev", CONVERTED, "a/b has no split 'dev': name one of test, train with --split"),
        ("a/b", ["x/train/0.parquet", "y/train/0.parquet"], "has several configs: name one of x"),
        ("a/b", ["b.py", "images.zip"], "its code is never run"),
    ],
)
def test_a_split_that_is_not_there_lists_the_choices(
    text: str, paths: list[str], problem: str
) -> None:
    with pytest.raises(DatasetError, match=problem):
        choose_split(hub_reference(text), [HubFile(path, None, None) for path in paths])


def test_the_dataset_is_named_after_what_is_not_usual() -> None:
    assert hub_reference("openai/gsm8k/main/train").dataset_name == "gsm8k"
    assert hub_reference("openai/gsm8k/socratic/test").dataset_name == "gsm8k-socratic-test"
    for repository, name in {"_x": "x", "taté": "tat-", "train": "train", "_": "dataset"}.items():
        assert hub_reference(f"org/{repository}").dataset_name == name
