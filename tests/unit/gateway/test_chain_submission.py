"""A chain may name checkpoints of an earlier step, if they will exist."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.contracts.config import parse_config
from services.gateway.chains.chain_submission import lacks

RL: dict[str, Any] = {
    "model": {"path": "m"},
    "data": {"dataset": "d"},
    "rewards": [{"verifier": "math"}],
}
SFT: dict[str, Any] = {"type": "sft", "model": {"path": "m"}, "data": {"dataset": "d"}}
TRAINING = {"checkpoint_every": 10, "keep_checkpoints": 2}


def lacking(raw: dict[str, Any], step: int, last: int | None = 45) -> str:
    config = parse_config(raw | {"training": TRAINING})
    record = SimpleNamespace(max_steps=last)
    return lacks(cast(Any, SimpleNamespace(config=config, record=record)), step) or ""


@pytest.mark.parametrize("step", [40, 45])
def test_a_checkpoint_that_is_kept_may_be_named(step: int) -> None:
    assert lacking(RL, step) == ""


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (46, "trains 45 steps"),
        (0, "after every 10 steps and after the last one, 45"),
        (44, "after every 10 steps and after the last one, 45"),
        (30, "makes 2 checkpoints after that of step 30, and keeps 2 of all"),
        (10, "makes 4 checkpoints after that of step 10, and keeps 2 of all"),
    ],
)
def test_a_checkpoint_that_will_not_exist_is_refused_at_submission(step: int, reason: str) -> None:
    assert reason in lacking(RL, step)
    assert reason in lacking(SFT | {"validation": {"share": 0}}, step)


def test_a_checkpoint_that_may_be_kept_is_not_refused() -> None:
    # Steps that are validated may be the best; of epochs nobody knows the last step yet.
    assert lacking(SFT | {"validation": {"every": 6}}, 12) == ""
    assert "keeps 2 of all" in lacking(SFT | {"validation": {"every": 6}}, 10)
    assert lacking(RL, 7, last=None) == ""
