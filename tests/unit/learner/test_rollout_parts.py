"""Trained groups are kept with their tokens, off the training path, and never stop a run."""

import shutil
import threading
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import torch

from learner.batch.samples import group_samples, token_staleness
from learner.batch.staleness import Ancestry
from learner.metrics.rollout_rows import (
    TrainedGroup,
    is_kept,
    records_of,
    share_kept,
    table_of,
)
from learner.metrics.token_texts import token_texts
from learner.model.loading.scratch import UNKNOWN
from learner.persist import rollout_parts
from learner.persist.rollout_parts import RolloutParts
from services.contracts.config.objective.algorithm import Algorithm
from services.contracts.config.objective.terms import (
    GAE,
    Advantage,
    GlobalWhiten,
    GroupMean,
    ReverseKL,
    SequenceValue,
)
from services.contracts.groups.rollout import AUTO_TOKENS
from services.contracts.groups.trajectory import TrajectoryGroup
from services.rollouts.reader import group as read_group
from services.rollouts.reader import page
from services.rollouts.rollout_filter import RolloutFilter
from services.rollouts.sampled import sampled_answers
from services.store import Fenced
from tests.unit.learner.policies import tiny_model, trajectory_group

MEAN = Algorithm(advantage=GroupMean(type="group_mean"))
ELSEWHERE: list[Advantage] = [
    GlobalWhiten(type="global_whiten"),
    GAE(type="gae"),
    SequenceValue(type="sequence_value"),
    ReverseKL(type="reverse_kl"),
]
"""Estimators that keep a sample's reward in its advantage."""


def trained(group: TrajectoryGroup, numbers: list[int] | None = None) -> TrainedGroup:
    """The group after its training: the learner found each token e^0.5 times as likely."""
    staleness = token_staleness(group, Ancestry((("a", 0),)), 3)
    samples = group_samples(group, MEAN, 9, staleness)
    for sample in samples:
        if sample.trains:
            sample.learner_logprobs = sample.sampler_logprobs + 0.5
            sample.entropy = torch.full_like(sample.sampler_logprobs, 2.0)
    chosen = [*range(group.samples)] if numbers is None else numbers
    return TrainedGroup(group, [s for s in samples if s.number in chosen], chosen)


class Store:
    """A run's store that records warnings."""

    run = "r"

    def __init__(self, fenced: bool = False) -> None:
        self.warnings: list[str] = []
        self._fenced = fenced

    def warn(self, message: str) -> None:
        self.warnings.append(message)

    def cancelled(self) -> bool:
        if self._fenced:
            raise Fenced("r")
        return False


def opened(
    root: Path, store: Store, keep_share: float | str = "auto", rank: int = 0
) -> RolloutParts:
    config: Any = SimpleNamespace(algorithm=MEAN, rollout=SimpleNamespace(keep_share=keep_share))
    given: Any = store
    return RolloutParts(config, given, root, rank, tiny_model().tokenizer)


def rows(groups: list[TrainedGroup], algorithm: Algorithm = MEAN) -> list[dict[str, Any]]:
    texts = pa.array(token_texts(tiny_model().tokenizer), pa.binary())
    found: list[dict[str, Any]] = table_of(groups, 4, algorithm, texts).to_pylist()
    return found


def test_an_answer_has_each_token_as_it_was_sampled_and_as_it_was_trained() -> None:
    group = trajectory_group(
        [0.25, 1.0, None],
        components={"math": [0.0, 1.0, None]},
        reasons=[{"math": "4 against 5"}, {"math": "5 against 5"}, {}],
        reference="5",
    )

    _, best, broken = rows([trained(group)])

    tokenizer = tiny_model().tokenizer
    assert best["prompt"] == "".join(tokenizer.convert_ids_to_tokens([1, 7]))
    assert best["completion"] == "".join(tokenizer.convert_ids_to_tokens([10, 11, 12]))
    assert (best["step"], best["group"], best["sample"], best["row"]) == (4, 5, 1, 3)
    assert (best["reward"], best["advantage"], best["trained"]) == (1.0, 0.375, True)
    assert (best["components"], best["reasons"]) == ('{"math": 1.0}', '{"math": "5 against 5"}')
    assert (best["token_ids"], best["prompt_token_ids"]) == ([10, 11, 12], [1, 7])
    # The policy did not sample the second token.
    assert best["sampler_logprobs"] == [pytest.approx(-0.3, rel=8e-6 * 2), None, -0.5]
    assert best["learner_logprobs"] == [pytest.approx(0.2, rel=8e-6 * 2), None, 0.0]
    assert (best["entropy"], best["advantages"]) == ([2.0, None, 2.0], None)
    assert best["versions"] == [
        {"start": 0, "end": 1, "version": 1},
        {"start": 1, "end": 2, "version": None},
        {"start": 2, "end": 3, "version": 2},
    ]
    # Its verifier broke, so it is not in the loss.
    assert (broken["reward"], broken["advantage"], broken["trained"]) == (None, None, False)
    assert (broken["learner_logprobs"], broken["entropy"]) == (None, None)


def test_special_tokens_are_kept_and_no_blank_is_tidied_away() -> None:
    group = trajectory_group([1.0])
    group.tokens[:] = tiny_model().tokenizer.convert_tokens_to_ids([UNKNOWN, "<eos>"])
    assert rows([trained(group)])[0]["completion"] == "<unk><eos>"


@pytest.mark.parametrize("advantage", ELSEWHERE, ids=lambda term: str(term.type))
def test_tokens_with_advantages_of_their_own_leave_the_answer_none(advantage: Advantage) -> None:
    group = trained(trajectory_group([1.0, 0.0]))
    group.samples[0].token_advantages = torch.tensor([0.75])
    algorithm = MEAN.model_copy(update={"advantage": advantage})
    first, second = rows([group], algorithm)
    assert (first["advantage"], first["advantages"]) == (None, [0.75, None])
    assert (second["advantage"], second["advantages"]) == (None, None)


def test_the_index_has_the_figures_of_the_part() -> None:
    texts = pa.array(token_texts(tiny_model().tokenizer), pa.binary())
    group = trajectory_group([None, 0.5], finish_reasons=["stop", "length"], dataset="sums")
    records = records_of(table_of([trained(group)], 4, MEAN, texts), 3)
    assert records["group"].tolist() == [5, 5]
    assert records["tokens"].tolist() == [2, 3]
    assert (records["reward"][1], bool(torch.tensor(records["reward"][0]).isnan())) == (0.5, True)
    assert records["truncated"].tolist() == [False, True]
    assert records["trained"].tolist() == [False, True]
    assert (records["rank"].tolist(), records["place"].tolist()) == ([3, 3], [0, 1])


def test_an_even_share_of_groups_is_kept_the_same_on_all_ranks() -> None:
    assert share_kept("auto", 1000) == 1
    assert share_kept("auto", 4 * AUTO_TOKENS) == 0.25
    assert share_kept(0.5, 4 * AUTO_TOKENS) == 0.5
    kept = [task for task in range(10_000) if is_kept(task, 0.25)]
    assert abs(len(kept) - 2500) <= 2
    assert max(later - task for task, later in pairwise(kept)) <= 5
    assert all(is_kept(task, 1.0) for task in range(100))


def test_a_step_that_is_trained_again_replaces_its_part(tmp_path: Path) -> None:
    folder, store = tmp_path / "runs/r/rollouts", Store()
    for again in (0.0, 1.0):
        parts = opened(tmp_path, store)
        parts.begin(3)
        for step in (4, 5)[: 2 - int(again)]:
            parts.keep(step, [trained(trajectory_group([again]))], 2)
        parts.sync()
        parts.close()

    # Step 5 was not trained again yet.
    shown = page(folder, RolloutFilter(), None, 10)
    assert [(each.step, each.reward) for each in shown.rollouts] == [(4, 1.0)]
    whole = read_group(folder, "r", 4, 5)
    assert whole is not None
    assert whole.samples[0].tokens == ["6", "7"]
    assert (store.warnings, shown.damaged) == ([], [])


def test_each_rank_keeps_the_answers_that_it_trained(tmp_path: Path) -> None:
    group = trajectory_group([0.0, 1.0, 0.5])
    for rank, numbers in ((0, [0, 2]), (1, [1])):
        parts = opened(tmp_path, Store(), rank=rank)
        parts.keep(1, [trained(group, numbers)], 9)
        parts.close()
    whole = read_group(tmp_path / "runs/r/rollouts", "r", 1, 5)
    assert whole is not None
    assert [(each.sample, each.reward) for each in whole.samples] == [(0, 0.0), (1, 1.0), (2, 0.5)]


def test_a_full_disk_is_logged_once_and_loses_rollouts_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store()
    parts = opened(tmp_path, store)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1))
    for step in (1, 2):
        parts.keep(step, [trained(trajectory_group([1.0]))], 2)
    parts.sync()
    assert [warning.partition(":")[0] for warning in store.warnings] == [
        "the rollouts of step 1 are not kept, nor those of later steps until this ends"
    ]
    monkeypatch.undo()
    parts.keep(3, [trained(trajectory_group([1.0]))], 2)
    parts.close()
    assert [each.step for each in sampled_answers(tmp_path / "runs/r/rollouts", None, 9)[0]] == [3]


def test_a_learner_that_was_replaced_writes_no_part(tmp_path: Path) -> None:
    store = Store(fenced=True)
    parts = opened(tmp_path, store)
    parts.keep(1, [trained(trajectory_group([1.0]))], 2)
    parts.close()
    assert ([*tmp_path.rglob("*.parquet")], store.warnings) == ([], [])


def test_what_waits_for_a_slow_disk_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, gate = Store(), threading.Event()
    monkeypatch.setattr(store, "cancelled", gate.wait)
    monkeypatch.setattr(rollout_parts, "MOST_WAITING", 10)
    parts = opened(tmp_path, store)
    for step in (1, 2, 3):  # 4 tokens each
        parts.keep(step, [trained(trajectory_group([1.0]))], 2)
    gate.set()
    parts.close()
    assert [each.step for each in sampled_answers(tmp_path / "runs/r/rollouts", None, 9)[0]] == [
        2,
        1,
    ]
    assert ["the disk is slower than the training" in each for each in store.warnings] == [True]
