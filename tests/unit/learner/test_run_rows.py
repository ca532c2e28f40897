"""The rows of a supervised run. A run without a trainable row ends with the reason."""

import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from learner.batch.sft_steps import Lengths
from learner.distributed import Ranks
from learner.environment import RunEnvironment
from learner.errors import RunCannotGoOn
from learner.persist.disk_retry import CannotWrite
from learner.sft_data import run_rows
from learner.sft_data.run_rows import SupervisedRows
from learner.state import SupervisedProgress, TrainingProgress
from services.contracts.config import SFTConfig, parse_config
from services.contracts.records import DatasetRecord, DatasetSegment
from services.volume import Volume


class Tokens:
    """A dataset whose rows have these `lengths`, with the first token in the loss in the middle."""

    def __init__(self, name: str, lengths: list[int]) -> None:
        self.name, self._tokens = name, np.array(lengths, np.int32)

    def build(self, *_: Any) -> bool:
        return True

    def lengths(self) -> tuple[Lengths, int]:
        return Lengths(self._tokens, self._tokens // 2), 1


def opened(
    datasets: list[Tokens], held_out: Sequence[Tokens] = (), **sections: Any
) -> SupervisedRows:
    """The rows of a run on `datasets`, validated on `held_out`, by a model of 8 positions."""
    first, *others = ({"dataset": one.name} for one in datasets)
    config = parse_config(
        {
            "type": "sft",
            "model": {"path": "m"},
            "data": first | {"mix": others} | sections.pop("data", {}),
            "training": {"rows_per_step": 2, "max_steps": 5},
            "validation": {"share": 0.25},
        }
        | sections
    )
    assert isinstance(config, SFTConfig)
    embeddings = SimpleNamespace(num_embeddings=10)
    loaded = SimpleNamespace(
        max_length=8, model=SimpleNamespace(get_input_embeddings=lambda: embeddings)
    )
    datasets = [*datasets, *held_out]
    supervised = SupervisedProgress([len(one.lengths()[0].tokens) for one in datasets])
    state = cast(Any, SimpleNamespace(loaded=loaded, progress=SimpleNamespace(step=0)))
    return run_rows._opened(config, state, supervised, cast(Any, datasets))


@pytest.mark.parametrize("overlong", ["skip", "crop"])
def test_a_dataset_without_a_trainable_row_is_named(overlong: str) -> None:
    datasets = [Tokens("short", [3, 4, 5, 6]), Tokens("long", [16, 20, 24, 32])]
    with pytest.raises(RunCannotGoOn, match="no row to train on of long has room in"):
        opened(datasets, data={"overlong": overlong})


def test_a_dataset_with_one_row_that_can_be_trained_is_taken() -> None:
    rows = opened([Tokens("cut", [14, 12, 10, 9])], data={"overlong": "crop"})
    assert rows.steps.next() is not None


@pytest.mark.parametrize(
    ("data", "warnings"),
    [
        (
            {"overlong": "skip"},
            [
                "2 of 4 rows of a are left out (data.overlong skip): a row may have 8 tokens (the "
                "model's positions), and these are longer",
                "1 of 2 rows of b are left out (data.overlong skip): a row may have 8 tokens (the "
                "model's positions), and these are longer",
            ],
        ),
        (
            {"overlong": "crop", "max_seq_len": 8},
            [
                "1 of 4 rows of a are left out (data.overlong crop): a row may have 8 tokens "
                "(data.max_seq_len), and these begin their answers later",
                "1 of 4 rows of a lose their end (data.overlong crop): a row may have 8 tokens "
                "(data.max_seq_len)",
                "1 of 2 rows of b lose their end (data.overlong crop): a row may have 8 tokens "
                "(data.max_seq_len)",
            ],
        ),
        ({"overlong": "skip", "max_seq_len": 20}, []),
    ],
)
def test_a_run_warns_of_rows_that_are_left_out_or_cut(
    data: dict[str, Any], warnings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = {"a": [4, 5, 9, 20], "b": [3, 9]}

    def tokens(_volume: Volume, record: DatasetRecord, *_: Any) -> Tokens:
        return Tokens(record.name, lengths[record.name])

    records = [
        DatasetRecord(
            id=name,
            name=name,
            rows=len(rows),
            created=0.0,
            segments=[DatasetSegment(file="f", rows=len(rows), bytes=0, xxh3="")],
        )
        for name, rows in lengths.items()
    ]
    monkeypatch.setattr(run_rows, "_records", lambda *_: records)
    monkeypatch.setattr(run_rows, "DatasetTokens", tokens)
    embeddings = SimpleNamespace(num_embeddings=10)
    model = SimpleNamespace(get_input_embeddings=lambda: embeddings)
    positions = data.get("max_seq_len", 8)
    loaded = SimpleNamespace(tokenizer=None, max_length=positions, model=model)
    progress = TrainingProgress("r", 0, 0, [], "m", supervised=SupervisedProgress([4, 2]))
    state: Any = SimpleNamespace(progress=progress, loaded=loaded)
    said: list[str] = []
    store: Any = SimpleNamespace(
        warn=said.append, call=lambda _: (False, 0), runs=SimpleNamespace(standing=None)
    )
    config = parse_config(
        {
            "type": "sft",
            "model": {"path": "m"},
            "data": {"dataset": "a", "mix": [{"dataset": "b"}], **data},
            "validation": {"share": 0.0},
        }
    )
    assert isinstance(config, SFTConfig)
    ranks, stop = Ranks(0, 1, torch.device("cpu")), threading.Event()
    environment = RunEnvironment(ranks, store, Volume(tmp_path), stop)
    assert run_rows.open_rows(config, state, environment)
    assert said == warnings


@pytest.mark.parametrize(
    ("validation", "expected"), [({}, 2000), ({"rows": 5}, 5), ({"rows": None}, 5000)]
)
def test_a_validation_has_its_number_of_rows_for_any_size_of_dataset(
    validation: dict[str, Any], expected: int
) -> None:
    rows = opened([Tokens("large", [4] * 20_000)], validation={"share": 0.25} | validation)
    assert len(rows.validation) == expected


@pytest.mark.parametrize(
    ("validation", "first", "others"),
    [
        # The first set has its own limit, the second the common one.
        ({"rows": 10}, [0, 5, 10, 15], 10),
        # 4 rows of 4 tokens and 10 rows of 6 tokens have 76; half of them are 2 and 5 rows.
        ({"rows": 10, "tokens": 38}, [0, 10], 5),
        ({"rows": 10, "tokens": 1000}, [0, 5, 10, 15], 10),
        ({"rows": 10, "tokens": 1}, [0], 1),
    ],
)
def test_a_set_to_validate_on_has_its_own_number_of_rows_and_all_share_the_tokens(
    validation: dict[str, Any], first: list[int], others: int
) -> None:
    sets = {"datasets": [{"dataset": "a", "rows": 4}, "b"]}
    held_out = [Tokens("a", [4] * 20), Tokens("b", [6] * 20)]
    rows = opened([Tokens("d", [4] * 8)], held_out, validation=sets | validation)
    assert [use.row for use in rows.validation if use.component == 1] == first
    assert sum(use.component == 2 for use in rows.validation) == others


def test_a_run_that_is_asked_to_end_while_the_disk_is_full_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unwritten:
        """A dataset whose tokens do not fit on the disk."""

        def __init__(self, *_: Any) -> None:
            pass

        def build(self, *_: Any) -> bool:
            raise CannotWrite("cannot write datasets/d/tokens/k: No space left on device")

    record = DatasetRecord(id="d", name="d", rows=0, created=0.0, segments=[])
    monkeypatch.setattr(run_rows, "_records", lambda *_: [record])
    monkeypatch.setattr(run_rows, "DatasetTokens", Unwritten)
    progress = TrainingProgress("r", 0, 0, [], "m", supervised=SupervisedProgress([0]))
    state: Any = SimpleNamespace(progress=progress, loaded=SimpleNamespace(tokenizer=None))
    ranks, stop = Ranks(0, 1, torch.device("cpu")), threading.Event()
    config = parse_config({"type": "sft", "model": {"path": "m"}, "data": {"dataset": "d"}})
    assert isinstance(config, SFTConfig)
    store: Any = None
    environment = RunEnvironment(ranks, store, Volume(tmp_path), stop)
    assert run_rows.open_rows(config, state, environment) is None
