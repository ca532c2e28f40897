"""Kept answers are found by filter and text, page by page, and read with their tokens."""

import math
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from services.contracts.groups.rollout import EXCERPT, RolloutStatus
from services.rollouts import index, reader
from services.rollouts.index import cut, first_step, index_path, opened
from services.rollouts.parts import parts_of
from services.rollouts.reader import excerpt, group, joined, page
from services.rollouts.rollout_filter import RolloutFilter
from services.rollouts.sampled import choose, sampled_answers
from services.rollouts.token_texts import NAME, pieces, read_token_texts
from tests.kept_rollouts import answer, keep

Places = list[tuple[int, int, int]]


def places(folder: Path, text: str | None = None, limit: int = 100, **wanted: Any) -> Places:
    """The step, group and sample of each answer that fits, over all pages."""
    found: Places = []
    after = None
    while True:
        shown = page(folder, RolloutFilter(**wanted), text, limit, after)
        assert shown.damaged == []
        assert len(shown.rollouts) <= limit
        found += [(each.step, each.group, each.sample) for each in shown.rollouts]
        after = shown.next
        if after is None:
            return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Answers of two ranks, which share group 12 of step 3."""
    keep(
        tmp_path,
        [
            answer(1, 10, 0, reward=0.0, status="wrong", row=1),
            answer(1, 10, 1, reward=None, status="error", trained=False, row=1),
            answer(3, 12, 0, reward=0.5, completion="The Answer is 3", length=4, dataset="b"),
        ],
    )
    return keep(
        tmp_path,
        [
            answer(2, 11, 0, finish_reason="length", length=9),
            answer(3, 12, 1, token_ids=[2, 3, 4, 5]),
            answer(3, 9, 0, completion="answer [3", status="new_status"),
        ],
        rank=1,
    )


ALL = [(3, 9, 0), (3, 12, 0), (3, 12, 1), (2, 11, 0), (1, 10, 0), (1, 10, 1)]


@pytest.mark.parametrize("limit", range(1, 8))
def test_answers_of_all_ranks_come_newest_first_and_each_on_one_page(
    folder: Path, limit: int
) -> None:
    assert places(folder, limit=limit) == ALL


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"step": 2}, [(2, 11, 0)]),
        ({"step": 4}, []),
        ({"group": 12}, [(3, 12, 0), (3, 12, 1)]),
        ({"min_reward": 0.5}, ALL[:4]),
        ({"max_reward": 0.5}, [(3, 12, 0), (1, 10, 0)]),
        ({"min_reward": math.nan}, []),
        ({"row": 1}, ALL[4:]),
        ({"dataset": "b"}, [(3, 12, 0)]),
        ({"min_tokens": 4, "max_tokens": 8}, [(3, 12, 0), (3, 12, 1)]),
        ({"status": RolloutStatus.WRONG}, [(1, 10, 0)]),
        ({"status": RolloutStatus.ERROR}, [(1, 10, 1)]),
        ({"status": RolloutStatus.TRUNCATED}, [(2, 11, 0)]),
        ({"status": RolloutStatus.UNTRAINED}, [(1, 10, 1)]),
        ({"step": 3, "min_reward": 1.0, "status": RolloutStatus.CORRECT}, [(3, 12, 1)]),
    ],
)
def test_each_filter_keeps_what_fits(folder: Path, wanted: dict[str, Any], found: Places) -> None:
    assert places(folder, **wanted) == found
    assert places(folder, limit=1, **wanted) == found


def test_text_is_found_literally_and_in_any_case(folder: Path) -> None:
    assert places(folder, "ANSWER") == [(3, 9, 0), (3, 12, 0)]
    assert places(folder, "answer [3", limit=1) == [(3, 9, 0)]
    assert places(folder, "€") == [(3, 12, 1)]
    assert places(folder, ".*") == []


def test_a_text_search_that_takes_long_ends_with_the_place_to_go_on_from(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "SEARCH_SECONDS", -1)

    first = page(folder, RolloutFilter(), "nowhere", 10)

    # One step was searched.
    assert (first.rollouts, first.next) == ([], (3, 12, 1))
    assert places(folder, "ANSWER") == [(3, 9, 0), (3, 12, 0)]


@pytest.mark.parametrize("block", [1, 2, 3, 4])
def test_the_size_of_index_blocks_changes_no_result(
    folder: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(index, "BLOCK", block)
    assert places(folder) == ALL
    assert places(folder, max_reward=0.5) == [(3, 12, 0), (1, 10, 0)]


def test_a_group_has_the_answers_of_all_ranks_with_their_tokens(folder: Path) -> None:
    whole = group(folder, "r", 3, 12)

    assert whole is not None
    assert (whole.prompt, whole.prompt_tokens) == ("<bos>1+2=", ["<bos>", "1+2="])
    assert (whole.reference, whole.damaged) == ("3", [])
    first, second = whole.samples
    assert (first.sample, first.reward, second.sample) == (0, 0.5, 1)
    # The euro sign is in the last of its tokens.
    assert second.tokens == [" 3", "", "€", "<eos>"]
    assert second.completion == "".join(second.tokens)
    assert second.sampler_logprobs == [-0.5] * 4
    assert second.learner_logprobs == [-0.25] * 4
    assert second.entropy == [0.125] * 4
    assert [span.model_dump() for span in second.versions] == [{"start": 0, "end": 4, "version": 2}]
    assert second.reasons == {"math": "'3' against '3'"}
    assert group(folder, "r", 3, 13) is None
    assert group(folder, "r", 4, 12) is None


def test_a_damaged_part_is_named_and_hides_no_other_answer(folder: Path) -> None:
    part = parts_of(folder, 3)[1]
    part.write_bytes(part.read_bytes()[:-40])

    shown = page(folder, RolloutFilter(), None, 10)

    assert [(each.step, each.group) for each in shown.rollouts] == [
        (3, 12),
        (2, 11),
        (1, 10),
        (1, 10),
    ]
    assert shown.damaged == ["part-00000003-rank-0001.parquet"]
    assert page(folder, RolloutFilter(), "answer", 10).damaged == shown.damaged
    whole = group(folder, "r", 3, 12)
    assert whole is not None
    assert ([each.sample for each in whole.samples], whole.damaged) == ([0], shown.damaged)
    assert len(sampled_answers(folder, None, 10)[0]) == 4
    (folder / NAME).write_bytes(b"no arrow file")
    without = group(folder, "r", 2, 11)
    assert without is not None
    assert without.samples[0].tokens is None


def test_the_index_of_another_part_is_noticed(folder: Path, tmp_path: Path) -> None:
    other = keep(tmp_path / "other", [answer(2, 99, 0)])
    parts_of(folder, 2)[0].write_bytes(parts_of(other, 2)[0].read_bytes())
    shown = page(folder, RolloutFilter(step=2), None, 10)
    assert (shown.rollouts, shown.damaged) == ([], ["part-00000002-rank-0001.parquet"])


def test_a_reader_keeps_what_it_has_mapped_while_a_learner_goes_back(folder: Path) -> None:
    records = opened(index_path(folder, 0))
    cut(folder, 1)
    assert records["step"].tolist() == [1, 1, 3]
    assert opened(index_path(folder, 0))["step"].tolist() == [1, 1]
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_a_torn_index_record_is_ignored_and_overwritten(folder: Path, tmp_path: Path) -> None:
    with index_path(folder, 1).open("ab") as file:
        file.write(b"torn")
    assert places(folder) == ALL
    keep(tmp_path, [answer(4, 20, 0)], rank=1)
    assert places(folder) == [(4, 20, 0), *ALL]


def test_going_back_forgets_later_steps_and_unfinished_files(folder: Path) -> None:
    (folder / ".part-00000001-rank-0000.parquet.x1").write_bytes(b"")

    cut(folder, 2)

    assert places(folder) == ALL[3:]
    assert sorted(path.name for path in folder.glob("part*")) == [
        "part-00000001-rank-0000.parquet",
        "part-00000002-rank-0001.parquet",
    ]
    assert not [*folder.glob(".*")]
    cut(folder, 0)
    assert places(folder) == []
    assert first_step(folder) is None
    # A run that keeps none, or is deleted meanwhile.
    cut(folder / "nowhere", 0)
    assert places(folder / "nowhere") == []


def test_a_step_of_several_ranks_is_joined_to_one_file(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "joined.parquet"
    assert joined(folder, 3, target)
    rows = pq.read_table(target).to_pylist()
    assert sorted((row["group"], row["sample"]) for row in rows) == [(9, 0), (12, 0), (12, 1)]


def test_the_best_and_the_worst_of_one_group_and_one_of_each_other() -> None:
    rewards = [[0.1, 0.9, 0.5], [1.0, 1.0, 1.0]]
    # The best and the worst of group 0, then sample 2 % 3 of group 1 and of group 0.
    assert choose(rewards, 2, 4) == [(0, 1), (0, 0), (1, 2), (0, 2)]
    assert choose(rewards, 2, 2) == [(0, 1), (0, 0)]
    # Rewards of group 1 are all equal, so it has one answer; then sample 3 % 3 of each, then 4 % 3.
    assert choose(rewards, 3, 4) == [(1, 2), (0, 0), (1, 0), (0, 1)]
    assert sorted(choose([[0.0, 1.0], [1.0, None]], 7, 64)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert choose([[None, None]], 1, 4) == [(0, 1), (0, 0)]
    assert choose([], 1, 4) == []


def test_a_few_answers_of_each_step_come_the_newest_first_and_page_by_page(
    tmp_path: Path,
) -> None:
    rows = [
        answer(step, 10 * step + g, i, reward=float(i))
        for step in (1, 2)
        for g in (0, 1)
        for i in range(4)
    ]
    folder = keep(tmp_path, rows)
    assert first_step(folder) == 1

    shown, following = sampled_answers(folder, None, 100)

    assert following is None
    assert [(each.step, each.task) for each in shown] == [
        *((2, 20 + g) for g in (0, 1, 0, 0)),
        *((1, 10 + g) for g in (1, 0, 1, 1)),
    ]
    # The best of one group is the last of its step.
    assert [each.reward for each in shown[2:4]] == [0.0, 3.0]
    assert (shown[0].versions, shown[0].tokens, shown[0].completion) == ([1], 2, " 3<eos>")
    paged, after = [], None
    while True:
        more, after = sampled_answers(folder, None, 3, after)
        paged += more
        if after is None:
            break
    assert paged == shown
    assert sampled_answers(folder, 1, 100)[0] == shown[4:]


def test_a_long_completion_shows_what_was_searched_for() -> None:
    text = "a" * 1000 + "Needle" + "b" * 1000
    assert "Needle" in excerpt(text, "needle")
    assert len(excerpt(text, "needle")) == EXCERPT + 2
    assert excerpt(text, None).startswith("a" * 200 + "\n[… ")
    assert excerpt("short", "o") == "short"


def test_ids_beyond_the_vocabulary_have_no_text(folder: Path) -> None:
    texts = read_token_texts(folder)
    assert pieces([2, 999, 3], texts) == [" 3", "", "\ufffd"]
    assert pieces([], texts) == []
