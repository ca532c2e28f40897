"""A resumed run may change only some of its config."""

from typing import Any

import pytest

from recipes import find_recipe, merged
from services.contracts.config import parse_config
from services.gateway.submission.resuming import changed_by_resume

LIVE = merged(find_recipe("live").config, {"model": {"path": "m"}})
RL = LIVE | {"rollout": {}, "rewards": [{"verifier": "math"}]}
ROWS = RL | {"data": {"source": "dataset", "dataset": "train"}}
SFT: dict[str, Any] = {
    "type": "sft",
    "model": {"path": "m"},
    "data": {"dataset": "d", "max_seq_len": 8},
    "packing": {"tokens_per_step": 16},
    "validation": {"datasets": ["held"]},
}


def changed(config: dict[str, Any], previous: dict[str, Any]) -> list[str]:
    """The keys that differ and must not."""
    return [key for key, _ in changed_by_resume(parse_config(config), previous)]


def test_a_resumed_run_keeps_where_its_prompts_come_from() -> None:
    before = RL | {"data": {"dataset": "train"}}

    assert changed(ROWS, before) == changed(LIVE, LIVE) == []
    assert changed(LIVE, before) == ["data.source"]
    assert changed(ROWS, LIVE) == ["data.source"]


def test_a_resumed_run_keeps_the_order_of_its_rows() -> None:
    by_file = ROWS | {"data": ROWS["data"] | {"order": "file"}}
    shuffled = ROWS | {"data": ROWS["data"] | {"order": "shuffled"}}
    assert changed(shuffled, ROWS) == changed(by_file, by_file) == []
    for new, old in ((by_file, ROWS), (by_file, shuffled), (shuffled, by_file)):
        assert changed(new, old) == ["data.order"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"validation": {"datasets": [{"dataset": "held"}]}}, []),
        ({"validation": {"datasets": [{"dataset": "held", "rows": 5}]}}, ["validation.datasets"]),
        ({"packing": SFT["packing"] | {"when_none_fits": "crop"}}, ["packing"]),
    ],
)
def test_keys_that_are_newer_than_a_run_do_not_keep_it_from_being_resumed(
    changes: dict[str, Any], expected: list[str]
) -> None:
    assert changed(SFT | changes, SFT) == expected
