"""Figures of an evaluation, and the files of its answers."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from headrace.metric_rows import in_short
from services.contracts.config.data import PromptOptions
from services.contracts.config.evaluation import Evaluation, resolved
from services.contracts.config.rewards import RewardComponent
from services.contracts.config.rollout import Sampling
from services.contracts.evaluation import AnsweredRow, EvaluationRecord
from services.evaluations import (
    Measured,
    measured,
    outcome,
    part_path,
    read_page,
    read_result,
    results,
    write_part,
    write_result,
)
from services.evaluations.comparison import newcombe
from services.evaluations.outcome import bootstrap, wilson
from tests.evaluating import answered


def row(number: int, *statuses: str, category: str | None = None) -> Measured:
    rewards = [{"correct": 1.0, "error": None}.get(status, 0.0) for status in statuses]
    lengths = [10 * (i + 1) for i in range(len(statuses))]
    truncated = [tokens > 30 for tokens in lengths]
    return Measured(number, category, lengths, truncated, rewards, list(statuses))


def test_accuracy_counts_what_broke_as_wrong_and_the_reward_leaves_it_out() -> None:
    found = outcome([row(0, "correct"), row(1, "wrong"), row(2, "error"), row(3)], 1).metrics
    assert (found["accuracy"], found["reward"]) == (0.25, 0.5)
    assert (found["rows"], found["failed"]) == (4, 1)


def test_a_row_without_answers_counts_as_all_wrong() -> None:
    found = outcome([row(0, "correct", "correct", "wrong", "wrong"), row(1)], 4).metrics
    assert (found["accuracy"], found["failed"]) == (2 / 8, 1)
    # With 2 drawn, the first row has no right answer with C(2,2)/C(4,2) = 1/6; the other row
    # always.
    assert found["pass_at_2"] == pytest.approx((5 / 6 + 0) / 2)
    assert found["pass_at_4"] == 0.5
    assert (found["reward"], found["tokens_mean"]) == (0.5, 25.0)


def test_the_chance_that_one_of_k_is_right_is_known_for_all_k() -> None:
    one_of_four = row(0, "correct", "wrong", "wrong", "wrong")
    found = outcome([one_of_four, row(1, *["correct"] * 4), row(2, *["error"] * 4)], 4).metrics
    # With 2 drawn, the first row has no right answer with C(3,2)/C(4,2) = 1/2; the last row always.
    assert found["pass_at_2"] == pytest.approx((0.5 + 1 + 0) / 3)
    assert found["pass_at_4"] == pytest.approx(2 / 3)
    assert found["accuracy"] == pytest.approx((1 + 4 + 0) / 12)
    assert (found["tokens_mean"], found["truncated"]) == (25.0, 0.25)


def test_a_reward_is_in_its_interval_also_where_verifiers_broke() -> None:
    rows = [row(i, "correct", "error", "error", "error") for i in range(50)]
    rows += [row(50 + i, *["wrong"] * 4) for i in range(50)]
    found = outcome(rows, 4).metrics
    # Half of the rows earn 1, the others 0; a fifth of all rewards is 1.
    assert found["reward"] == 0.5
    assert found["reward_low"] < 0.5 < found["reward_high"]


def test_an_evaluation_knows_every_k_up_to_32_and_lists_show_a_few() -> None:
    found = outcome([row(0, *["correct"] * 3, *["wrong"] * 37)], 40).metrics
    passed = [name for name in found if name.startswith("pass_at_")]
    assert passed == [f"pass_at_{k}" for k in (*range(2, 33), 40)]
    # With 3 drawn from 40, C(37,3)/C(40,3) have no right answer.
    assert found["pass_at_3"] == pytest.approx(1 - 37 * 36 * 35 / (40 * 39 * 38))
    shown = in_short(found)
    assert [name for name in shown if name in passed] == [
        f"pass_at_{k}" for k in (2, 4, 8, 16, 32, 40)
    ]
    assert [name for name in shown if name not in passed] == [n for n in found if n not in passed]


def test_answers_that_are_only_rated_have_no_accuracy() -> None:
    found = outcome([row(0, "scored"), row(1, "error")], 1).metrics
    assert "accuracy" not in found
    assert "pass_at_1" not in found


def test_the_interval_of_four_wrong_answers_reaches_to_a_half() -> None:
    found = outcome([row(i, "wrong") for i in range(4)], 1).metrics
    # z² / (n + z²) with z = 1.96 and n = 4.
    assert found["accuracy_low"] == found["reward_low"] == 0
    assert found["accuracy_high"] == found["reward_high"] == pytest.approx(0.48990, abs=1e-4)
    # 15 of 148, as in Wilson's interval of Newcombe (1998), table I.
    low, high = wilson([1.0] * 15 + [0.0] * 133, 1)
    assert (low, high) == pytest.approx((0.0624, 0.1605), abs=1e-4)


def test_answers_to_one_row_narrow_the_interval_only_as_far_as_they_differ() -> None:
    alike = wilson([0.0, 0.0, 1.0, 1.0], 100)
    assert alike == wilson([0.0, 0.0, 1.0, 1.0], 1)
    independent = wilson([0.45, 0.55] * 2, 100)
    assert independent == pytest.approx(wilson([0.0, 1.0] * 200, 1))


def test_a_difference_of_verdicts_has_newcombes_interval() -> None:
    # The second example of Newcombe (1998): 36 rows right in both, 12 and 2 in one of them.
    pairs = [(1.0, 1.0)] * 36 + [(1.0, 0.0)] * 12 + [(0.0, 1.0)] * 2
    assert newcombe(pairs) == pytest.approx((0.0569, 0.3404), abs=1e-4)
    nothing = newcombe([(0.0, 0.0)] * 4)
    assert nothing == pytest.approx((-0.48990, 0.48990), abs=1e-4)


def test_the_interval_is_that_of_the_mean_and_the_same_each_time() -> None:
    random = np.random.default_rng(3)
    values = (random.random(400) < 0.3).astype(float)
    low, high = bootstrap(values.tolist())
    # The normal approximation, which holds for 400 rows.
    mean, error = values.mean(), values.std() / np.sqrt(400)
    assert low == pytest.approx(mean - 1.96 * error, abs=0.01)
    assert high == pytest.approx(mean + 1.96 * error, abs=0.01)
    assert bootstrap(values.tolist()) == (low, high)
    assert bootstrap([1.0]) == (1.0, 1.0)


def test_each_category_has_figures_of_its_own_and_there_are_not_too_many() -> None:
    rows = [row(i, "correct" if i % 2 else "wrong", category="ab"[i % 2]) for i in range(4)]
    found = outcome([*rows, row(4, "wrong")], 1)
    assert {name: one["accuracy"] for name, one in found.categories.items()} == {"a": 0, "b": 1}
    many = outcome([row(i, "wrong", category=str(i)) for i in range(300)], 1).categories
    assert (len(many), many["other"]["rows"]) == (100, 201)


@pytest.mark.parametrize("own", [1, 3])
def test_a_category_that_is_called_other_loses_no_row(own: int) -> None:
    """A large category stays as it is; a small one is one of the smallest."""
    rows = [row(i, "wrong", category=f"c{i // 2}") for i in range(300)]
    rows += [row(300 + i, "wrong", category="other") for i in range(own)]
    found = outcome(rows, 1).categories
    assert sum(one["rows"] for one in found.values()) == len(rows)


def test_pages_of_answers_have_each_row_once_in_order(tmp_path: Path) -> None:
    """Three parts, of more rows than are decoded at once, in the order in which they came."""
    rows = [answered(i, "correct" if i % 3 else "wrong", "wrong", category=str(i % 2))
            for i in range(200)]  # fmt: skip
    for number, part in enumerate((rows[150:], rows[:10], rows[10:150]), start=1):
        write_part(part_path(tmp_path, number), part)

    assert [one.row for one in measured(tmp_path)] == list(range(200))
    assert [one.row for one in measured(tmp_path, parts=2)] == [*range(10), *range(150, 200)]
    found = read_page(tmp_path, after=rows[7].row, limit=4)
    assert (found.rows, found.total) == (rows[8:12], 200)
    wrong = read_page(tmp_path, limit=100, verdict="wrong", category="1")
    assert [one.row for one in wrong.rows] == [i for i in range(200) if i % 3 == 0 and i % 2]
    assert read_page(tmp_path, limit=9, row=77).rows == [rows[77]]
    assert read_page(tmp_path, after=500, limit=9).rows == []
    # A learner that died before Redis had counted the part writes it again.
    write_part(part_path(tmp_path, 2), rows[:10])
    assert len(measured(tmp_path)) == 200
    assert pq.ParquetFile(part_path(tmp_path, 3)).metadata.row_group(0).column(2).compression == (
        "ZSTD"
    )


def test_a_row_that_could_not_be_answered_keeps_the_reason(tmp_path: Path) -> None:
    failed = AnsweredRow(row=0, prompt="", samples=[], error="too long")
    write_part(part_path(tmp_path, 1), [failed])
    assert read_page(tmp_path, limit=1, verdict="unscored").rows == [failed]


def test_answers_of_before_verifiers_gave_reasons_are_read(tmp_path: Path) -> None:
    path = part_path(tmp_path, 1)
    write_part(path, [answered(0, "correct", "wrong")])
    assert [one.reasons for one in read_page(tmp_path, limit=1).rows[0].samples] == [
        {"exact": "compared with 0"}
    ] * 2

    pq.write_table(pq.read_table(path).drop_columns("reasons"), path, write_page_checksum=True)
    assert [one.reasons for one in read_page(tmp_path, limit=1).rows[0].samples] == [{}, {}]


def test_a_record_that_cannot_be_read_stops_only_itself(tmp_path: Path) -> None:
    record = EvaluationRecord(
        id="000002-a", run="r", name="a", dataset="a", step=2, version="aaa:2", samples=1, rows=1,
        state="done", asked=0.0, metrics={"accuracy": 1.0},
    )  # fmt: skip
    write_result(tmp_path, record)
    (tmp_path / "runs/r/evaluations/000001-b").mkdir()
    (tmp_path / "runs/r/evaluations/000001-b/result.json").write_text("{")
    assert list(results(tmp_path, "r")) == [record]
    assert read_result(tmp_path, "r", "000002-a") == record
    assert read_result(tmp_path, "r", "000001-b") is None


def test_a_held_out_set_takes_what_it_leaves_out_from_the_evaluation() -> None:
    config = Evaluation(
        dataset="a",
        samples=4,
        temperature=0.5,
        category="level",
        more=[{"dataset": "b", "samples": 1, "template": "Q: {prompt}"}],
    )
    first, second = config.sets
    assert (first.samples, first.temperature, first.category) == (4, 0.5, "level")
    assert (second.dataset, second.samples, second.temperature) == ("b", 1, 0.5)
    options: dict[str, Any] = {
        "id": "0b", "dataset_name": "b", "rows": 7, "sampling": Sampling(max_tokens=9, seed=1),
        "prompt": PromptOptions(system="Be brief."), "rewards": [RewardComponent(verifier="exact")],
    }  # fmt: skip
    found = resolved(second, **options)
    assert (found.name, found.rows, found.sampling.max_tokens) == ("b", 7, 9)
    assert (found.prompt.system, found.prompt.template) == ("Be brief.", "Q: {prompt}")
    assert found.sampling.seed is None


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"dataset": "a", "more": [{"dataset": "a"}]}, "two held-out datasets are called 'a'"),
        ({"dataset": "a", "template": "no place"}, "lacks the placeholder {prompt}"),
        ({"dataset": "a", "name": "../x"}, "name"),
        ({"dataset": "a", "share": 0}, "share"),
    ],
)
def test_an_impossible_evaluation_is_refused(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem.replace("{", "\\{")):
        Evaluation.model_validate(config)
