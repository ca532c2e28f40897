"""The runs that a run's models come from, from its config."""

from typing import Any

import pytest

from services.models.path import needs_start, starts_from

KL = {"type": "k2"}
ELSEWHERE = {"type": "k2", "reference": {"type": "frozen", "path": "run:r"}}


@pytest.mark.parametrize(
    ("kl", "needed"),
    [({"type": "none"}, False), (KL, True), (ELSEWHERE, False)],
    ids=["no KL", "the model that the run started from", "a reference of its own"],
)
def test_a_resumed_run_needs_its_first_model_only_as_its_reference(
    kl: dict[str, Any], needed: bool
) -> None:
    assert needs_start({"model": {"path": "run:p"}, "algorithm": {"kl": kl}}) is needed


def test_a_run_comes_from_the_runs_of_all_its_models() -> None:
    algorithm = {"kl": ELSEWHERE, "critic": {"path": "run:c@3"}, "teacher": {"path": "run:t"}}
    config = {"model": {"path": "run:p"}, "algorithm": algorithm}
    assert starts_from(config) == {"p", "c", "t", "r"}
    assert starts_from({"model": {"path": "org/model"}, "algorithm": {"critic": None}}) == set()
