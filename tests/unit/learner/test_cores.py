"""The cores that a rank borrows of vLLM: while it trains, and not longer."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from learner.cores import TrainingCores
from learner.model.passes.logprobs import packed_row
from learner.optim.optimizers import Optimizers
from learner.state import TrainingState
from services.contracts.config.optimizer import AdamW
from services.runtime.core_loans import BORROWED, LOCKS, CoreLoan
from tests.unit.learner.policies import state_of, tiny_model
from tests.unit.learner.unigrams import Unigrams

OWN, IDLE = 1, 2


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TrainingState]:
    """On a machine on which vLLM leaves IDLE cores."""
    monkeypatch.setenv(LOCKS, str(tmp_path))
    monkeypatch.setenv(BORROWED, "1,2")
    monkeypatch.setattr(CoreLoan, "available", lambda _: IDLE)
    before = torch.get_num_threads()
    torch.set_num_threads(OWN)
    yield state_of(Unigrams(), Optimizers(tiny_model().model, AdamW()))
    torch.set_num_threads(before)


def threads_of_a_pass(state: TrainingState) -> int:
    """With how many the policy computes."""
    seen: list[int] = []
    hook = state.policy.register_forward_hook(lambda *_: seen.append(torch.get_num_threads()))
    state.policy(packed_row([torch.tensor([1, 2])], [torch.tensor([False, True])]), 1.0)
    hook.remove()
    return seen[0]


def test_a_rank_borrows_cores_while_it_trains_and_gives_them_back(state: TrainingState) -> None:
    cores = TrainingCores(state)
    with cores.computing():
        assert threads_of_a_pass(state) == OWN + IDLE
    assert torch.get_num_threads() == OWN


def test_a_pass_between_two_batches_leaves_no_borrowed_core_behind(state: TrainingState) -> None:
    cores = TrainingCores(state)
    with cores.computing():
        threads_of_a_pass(state)
    # The canary of the version that was made.
    assert threads_of_a_pass(state) == OWN
    assert torch.get_num_threads() == OWN


def test_a_run_that_fails_in_a_pass_gives_its_cores_back(state: TrainingState) -> None:
    cores = TrainingCores(state)

    def fail() -> None:
        with cores.computing():
            threads_of_a_pass(state)
            raise ValueError("no number")

    with pytest.raises(ValueError, match="no number"):
        fail()
    assert torch.get_num_threads() == OWN
