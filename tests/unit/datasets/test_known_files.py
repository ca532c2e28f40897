"""Well-known files in their authors' formats: what is asked, what is compared, what is refused."""

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest

from services.contracts.records import DatasetRecord
from services.contracts.rows.dataset import Row
from services.datasets import (
    KNOWN_FILES,
    DatasetError,
    DatasetReader,
    Imported,
    SourceFile,
    import_files,
    known_file,
)
from services.volume import Volume
from tests.unit.reward.scoring import VERIFIERS, score

GSM8K = {"question": "What is 1+1?", "answer": "It is <<1+1=2>>2.\n#### 2"}
MATH = {
    "problem": "What is $1+1$?",
    "level": "Level 1",
    "type": "Prealgebra",
    "solution": "We add: $1+1=\\boxed{2}$.",
}
HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": 'def double(x):\n    """Twice x."""\n',
    "entry_point": "double",
    "canonical_solution": "    return 2 * x\n",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n",
}
MBPP = {
    "text": "Write a function to double a number.",
    "code": "def double(x): return 2 * x",
    "task_id": 11,
    "test_setup_code": "",
    "test_list": ["assert double(2) == 4", "assert double(0) == 0"],
    "challenge_test_list": [],
}
SANITIZED = {
    "source_file": "x.ipynb",
    "task_id": 11,
    "prompt": "Write a function to double a number.",
    "code": "def double(x): return 2 * x",
    "test_imports": ["import math"],
    "test_list": ["assert double(2) == 4"],
}
IFEVAL = {
    "key": 1000,
    "prompt": "Write three words. Do not use commas.",
    "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_words"],
    "kwargs": [{}, {"relation": "at least", "num_words": 3}],
}
COUNTDOWN = {"target": 98, "nums": [44, 19, 35]}
GYM = {
    "question": "What is 1 + 1?",
    "answer": "2",
    "metadata": {"source_dataset": "chain_sum", "source_index": 0},
}


def imported(root: Path, rows: list[dict[str, Any]], name: str, packed: bool = False) -> list[Row]:
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    file = io.BytesIO(gzip.compress(content) if packed else content)
    filename = "rows.jsonl.gz" if packed else "rows.jsonl"
    done: Imported = import_files(
        root, [SourceFile(file, filename)], "rows", mapping=known_file(name)
    )
    record = DatasetRecord(
        id=done.id, name="rows", rows=done.segment.rows, created=0, segments=[done.segment]
    )
    return DatasetReader(Volume(root), record).rows(range(done.segment.rows))


@pytest.mark.parametrize(
    ("name", "source", "prompt", "answer", "columns"),
    [
        ("gsm8k", GSM8K, GSM8K["question"], GSM8K["answer"], {}),
        (
            "math",
            MATH,
            MATH["problem"],
            MATH["solution"],
            {"level": "Level 1", "type": "Prealgebra"},
        ),
        (
            "humaneval",
            HUMANEVAL,
            HUMANEVAL["prompt"],
            {key: HUMANEVAL[key] for key in ("prompt", "test", "entry_point")},
            {"task_id": "HumanEval/0", "canonical_solution": HUMANEVAL["canonical_solution"]},
        ),
        (
            "mbpp",
            MBPP,
            "Write a function to double a number.\n\nYour code should pass these tests:\n\n"
            "assert double(2) == 4\nassert double(0) == 0",
            {"test_list": MBPP["test_list"], "test_setup_code": ""},
            {"task_id": 11, "code": MBPP["code"], "challenge_test_list": []},
        ),
        (
            "mbpp",
            SANITIZED,
            "Write a function to double a number.\n\nYour code should pass these tests:\n\n"
            "assert double(2) == 4",
            {"test_list": SANITIZED["test_list"], "test_imports": ["import math"]},
            {"task_id": 11, "code": MBPP["code"], "source_file": "x.ipynb"},
        ),
        (
            "ifeval",
            IFEVAL,
            IFEVAL["prompt"],
            {key: IFEVAL[key] for key in ("instruction_id_list", "kwargs")},
            {"key": 1000},
        ),
        (
            "countdown",
            COUNTDOWN,
            "Using the numbers [44, 19, 35], create an equation that equals 98. You can use basic "
            "arithmetic operations (+, -, *, /) and each number can only be used once.",
            {"nums": [44, 19, 35], "target": 98},
            {},
        ),
        (
            "reasoning_gym",
            GYM,
            GYM["question"],
            {"answer": "2", "metadata": GYM["metadata"]},
            {},
        ),
    ],
)
def test_rows_of_well_known_files_become_prompts_and_references(
    tmp_path: Path, name: str, source: dict[str, Any], prompt: str, answer: Any, columns: Any
) -> None:
    assert imported(tmp_path, [source], name) == [
        Row(prompt=prompt, answer=answer, columns=columns)
    ]


@pytest.mark.parametrize(
    ("name", "source", "right", "wrong"),
    [
        ("gsm8k", GSM8K, "1+1 is 2.\n#### 2", "#### 3"),
        ("math", MATH, "so \\boxed{2}", "so \\boxed{3}"),
        ("ifeval", IFEVAL, "one two three", "one, two, three"),
        ("countdown", COUNTDOWN, "<answer>44 + 19 + 35</answer>", "<answer>44 + 54</answer>"),
    ],
)
def test_the_verifier_of_a_mapping_scores_its_rows(
    tmp_path: Path, name: str, source: dict[str, Any], right: str, wrong: str
) -> None:
    (row,) = imported(tmp_path, [source], name)
    (reward,) = KNOWN_FILES[name].defaults.rewards

    assert score(reward.verifier, right, row.answer, **reward.params).reward == 1
    assert score(reward.verifier, wrong, row.answer, **reward.params).reward == 0


def test_every_mapping_asks_for_the_prompt_and_names_a_verifier_that_comes_with_headrace() -> None:
    optional = {"code", "reasoning_gym"}
    for known in KNOWN_FILES.values():
        assert "{prompt}" in known.defaults.template
        assert {one.verifier for one in known.defaults.rewards} <= {*VERIFIERS, *optional}


def test_a_packed_file_is_read_as_what_it_holds(tmp_path: Path) -> None:
    assert imported(tmp_path, [GSM8K] * 3, "gsm8k", packed=True) == imported(
        tmp_path, [GSM8K] * 3, "gsm8k"
    )


def test_a_packed_file_that_is_cut_or_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    whole = gzip.compress(json.dumps(GSM8K).encode() * 200)
    with pytest.raises(DatasetError, match="no whole gzip file"):
        import_files(tmp_path, [SourceFile(io.BytesIO(whole[:-20]), "x.jsonl.gz")], "x")
    bomb = gzip.compress(b" " * (65 << 20))
    with pytest.raises(DatasetError, match=r"16 MiB|64 MiB"):
        import_files(tmp_path, [SourceFile(io.BytesIO(bomb), "x.jsonl.gz")], "x")
    assert not list(tmp_path.glob("datasets/*"))


def test_a_row_without_the_columns_of_its_mapping_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"line 2 has no column 'target', which the mapping"):
        imported(tmp_path, [COUNTDOWN, {"nums": [1]}], "countdown")
    with pytest.raises(DatasetError, match=r"line 1 has no column 'text' or 'prompt'"):
        imported(tmp_path, [{"test_list": []}], "mbpp")
    with pytest.raises(DatasetError, match=r"line 1: column 'answer' is null, and the mapping"):
        imported(tmp_path, [{"question": "b?", "answer": None}], "gsm8k")
    with pytest.raises(DatasetError, match=r"line 1: column 'text' is null.*remove the row"):
        imported(tmp_path, [{"text": None, "test_list": []}], "mbpp")
    with pytest.raises(DatasetError, match=r"line 1: test_list"):
        imported(tmp_path, [{"text": "x", "test_list": "assert 1"}], "mbpp")


def test_an_unknown_mapping_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(DatasetError, match="did you mean 'gsm8k'"):
        known_file("gsm8")
