"""The samples that ranks fetch for a batch: every sample once, with the advantage of its whole
group, and each group in the metrics once."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
import torch

from learner.batch.samples import TrainingSample
from learner.coordinate.planner import shares_of
from learner.distributed import Ranks
from learner.errors import UnreadableGroups
from learner.model.passes.mfu import sequence_cost
from learner.objective.baselines import Baselines, Mean
from learner.rl import RankBatch, fetch
from learner.state import TrainingProgress
from learner.store.commands import Command
from services.contracts.config import RLConfig, parse_config
from services.contracts.config.objective.terms import RunningMean
from services.contracts.groups.group_lengths import GroupLengths
from services.contracts.groups.trajectory import encode
from tests.unit.learner.policies import tiny_model, trajectory_group
from tests.unit.learner.threads import on_ranks

REWARDS: list[list[float | None]] = [
    [0.0, 1.0, 0.5, 0.25],
    [1.0, None, 0.0, 1.0],
    [0.5, 0.5, 1.0, 0.0],
    [None, None, None, None],
]
CONFIG = parse_config(
    {
        "type": "rl",
        "model": {"path": "org/model"},
        "data": {"dataset": "d"},
        "rewards": [{"verifier": "exact"}],
        "algorithm": {
            "prompts_per_step": 4,
            "samples_per_prompt": 4,
            "minibatches": 2,
            "shaping": {"mask_truncated": True},
        },
    }
)


class Stored:
    """The groups of a batch, in the form of a learner's RunStore."""

    def __init__(self) -> None:
        ends = ["stop", "stop", "stop", "length"]
        self.groups = [
            trajectory_group(rewards, task=i, finish_reasons=ends, prompt_key=f"row {i % 2}")
            for i, rewards in enumerate(REWARDS)
        ]
        self.trajectories = self
        self.stored: dict[int, bytes | None] = {}
        """The stored values, by position, that replace a group's payload."""

    def call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        return method(*arguments)

    def payloads(self, positions: list[int]) -> list[bytes | None]:
        return [self.stored.get(p, bytes(encode(self.groups[p]))) for p in positions]

    def payload(self, stored: bytes) -> bytes:
        return stored


def batches(
    size: int,
    epochs: int = 1,
    stored: dict[int, bytes | None] | None = None,
    baselines: Baselines | None = None,
) -> list[RankBatch]:
    """Fetch on each of `size` ranks, for `epochs` passes, with running means after `baselines` if
    given."""
    assert isinstance(CONFIG, RLConfig)
    changed: dict[str, Any] = {"epochs_per_batch": epochs}
    if baselines:
        changed["advantage"] = RunningMean(type="running_mean", decay=0.5)
    algorithm = CONFIG.algorithm.model_copy(update=changed)
    config = CONFIG.model_copy(update={"algorithm": algorithm})
    store, cost = Stored(), sequence_cost(tiny_model().model)
    store.stored = stored or {}
    lengths = [GroupLengths.parse(str(g.trained_lengths(True))) for g in store.groups]
    command = Command(
        "train", 4, [shares_of([a, a + 1], lengths[a : a + 2], size, cost) for a in (0, 2)]
    )
    progress = TrainingProgress("r", 3, 3, [("a", 0)], "base", baselines=baselines or Baselines())

    def one(ranks: Ranks) -> RankBatch:
        return fetch(command, config, ranks, store, progress)  # type: ignore[arg-type]

    return on_ranks(size, one)


def described(sample: TrainingSample) -> str:

    return str(asdict(sample))


@pytest.mark.parametrize("size", [2, 3, 5])
def test_several_ranks_together_have_the_samples_of_a_single_rank(size: int) -> None:
    (alone,) = batches(1)
    torch.set_printoptions(profile="full")
    shared = batches(size)
    for number, part in enumerate(alone.minibatches):
        found = [described(s) for batch in shared for s in batch.minibatches[number]]
        assert sorted(found) == sorted(described(sample) for sample in part)
        assert len(found) == 8
    for batch in shared:
        assert batch.outcomes == pytest.approx(alone.outcomes)
    assert alone.outcomes["groups"] == 4
    assert any(0 < len(batch.minibatches[0]) < 4 for batch in shared), "no group is split"


def test_every_rank_compares_with_the_same_running_means() -> None:
    before = Baselines(Mean(0.5, 9), {"row 0": Mean(0.25, 9)})
    found = [batch for size in (1, 3) for batch in batches(size, baselines=before)]
    # Row 0 has 1.75/4 and 2/4, row 1 has 2/3. Half of the difference counts, and the last group has
    # no mean.
    means = {"row 0": (0.25 + 0.4375) / 4 + 0.25, "row 1": (0.5 + 2 / 3) / 2}
    for batch in found:
        after = batch.baselines.keys
        assert {key: mean.value for key, mean in after.items()} == pytest.approx(means)
        assert batch.compared["baseline/known_keys"] == pytest.approx(2 / 3)
    # Minus 1/4 in group 0; minus 1/2 in group 1. One sample there has no reward.
    advantages = sorted(s.advantage for batch in found[1:] for s in batch.minibatches[0])
    assert advantages == [-0.5, -0.25, 0.0, 0.0, 0.25, 0.5, 0.5, 0.75]


def test_a_sample_that_does_not_train_has_length_0_in_the_stream() -> None:
    found = [str(group.trained_lengths(mask_truncated=True)) for group in Stored().groups]
    assert found == ["2:2,3,4,0", "2:2,0,4,0", "2:2,3,4,0", "2:0,0,0,0"]
    assert str(Stored().groups[0].trained_lengths(mask_truncated=False)) == "2:2,3,4,5"


def test_groups_that_cannot_be_read_are_named_on_every_rank() -> None:
    stored = {1: None, 3: b"damaged"}
    found: list[dict[int, str]] = []

    def one(size: int) -> None:
        with pytest.raises(UnreadableGroups) as error:
            batches(size, stored=stored)
        found.append(error.value.reasons)

    one(1)
    one(2)
    assert found[0] == found[1]
    assert found[0][1] == "the group of task 1: its payload is not in the stream"
    assert found[0][3].startswith("the group of task 3: trajectory group")


def test_a_group_that_is_not_as_its_entry_in_the_stream_says_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lie = GroupLengths(2, (2, 3, 4))
    monkeypatch.setattr("tests.unit.learner.test_fetch.GroupLengths.parse", lambda _: lie)
    with pytest.raises(UnreadableGroups, match=r"task 0: it has 4 samples, its entry .* 3"):
        batches(1)


@pytest.mark.parametrize("text", ["", "5", "5:", "x:1", "5:1,-2", "-1:3", "5:1,,2"])
def test_lengths_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"length|literal"):
        GroupLengths.parse(text)


def test_later_passes_have_the_same_samples_in_minibatches_that_are_cut_anew() -> None:
    (alone,) = batches(1, epochs=6)
    passes = [alone.minibatches[i : i + 2] for i in range(0, 12, 2)]
    everything = {id(sample) for part in passes[0] for sample in part}
    groups = set()
    for one in passes:
        assert [len(part) for part in one] == [8, 8]
        assert {id(sample) for part in one for sample in part} == everything
        groups.add(str([sorted({sample.task for sample in part}) for part in one]))
    assert len(groups) > 1, "all passes have the same minibatches"
    assert alone.outcomes == batches(1)[0].outcomes
    for number in range(12):
        shared = [sample for batch in batches(3, epochs=6) for sample in batch.minibatches[number]]
        assert sorted(map(described, shared)) == sorted(map(described, alone.minibatches[number]))
