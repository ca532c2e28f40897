"""The rows of supervised steps: lost, padded and skipped rows are counted, and steps can resume."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.batch.best_fit import BestFit
from learner.batch.sft_steps import Lengths, SFTSteps, step_count
from services.contracts.config import SFTConfig, parse_config
from services.contracts.rows.mixture import Mixture, Source

TOKENS = [3, 9, 4, 12, 5, 7, 2, 8, 6, 10]


def config(**changes: Any) -> SFTConfig:
    sections: dict[str, Any] = {
        "type": "sft",
        "model": {"path": "m"},
        "data": {"dataset": "d"},
        "training": {"rows_per_step": 3},
    }
    made = parse_config(sections | changes)
    assert isinstance(made, SFTConfig)
    return made


PACKED: dict[str, Any] = {
    "training": {},
    "packing": {"tokens_per_step": 24, "buffer": 3},
}
LENGTHS = [Lengths(np.array(TOKENS, np.int32), np.ones(len(TOKENS), np.int32))]


def mixture() -> Mixture:
    return Mixture([Source(len(TOKENS), 0, len(TOKENS))], seed=2)


def test_epochs_have_every_row_and_the_last_step_what_is_left() -> None:
    steps = list(SFTSteps(config(), mixture(), LENGTHS, 12))
    assert [len(step.uses) for step in steps] == [3, 3, 3, 1]
    assert sorted(use.row for step in steps for use in step.uses) == list(range(10))
    twice = config(training={"rows_per_step": 3, "epochs": 2})
    assert step_count(twice, mixture(), LENGTHS, 12) == 7


def test_a_number_of_steps_goes_round_the_epochs() -> None:
    steps = SFTSteps(config(training={"rows_per_step": 3, "max_steps": 9}), mixture(), LENGTHS, 12)
    found = [steps.next() for _ in range(9)]
    assert all(step and len(step.uses) == 3 for step in found)


def test_the_order_of_a_run_that_is_given_more_steps_than_its_epochs_goes_on() -> None:
    more = SFTSteps(config(training={"rows_per_step": 3, "max_steps": 9}), mixture(), LENGTHS, 12)
    steps = SFTSteps(config(), mixture(), LENGTHS, 12)
    first = [steps.next() for _ in range(3)]
    steps.run_on()
    assert [*first, *(steps.next() for _ in range(6))] == [more.next() for _ in range(9)]


@pytest.mark.parametrize(
    ("overlong", "taken", "lost", "skipped"),
    [("crop", {1: 8, 3: 8, 9: 8}, 1 + 4 + 2, 0), ("skip", {}, 0, 3)],
)
def test_overlong_rows_are_cropped_or_skipped_and_counted(
    overlong: str, taken: dict[int, int], lost: int, skipped: int
) -> None:
    data = {"dataset": "d", "max_seq_len": 8, "overlong": overlong}
    steps = list(SFTSteps(config(data=data), mixture(), LENGTHS, 8))
    used = {use.row: use.tokens for step in steps for use in step.uses}
    short = {row: tokens for row, tokens in enumerate(TOKENS) if tokens <= 8}
    assert used == short | taken
    assert sum(step.lost for step in steps) == lost
    # Skipped rows after the last row belong to no step.
    assert sum(step.skipped for step in steps) + (skipped > 0) >= skipped


def test_a_row_whose_answer_is_cut_off_is_left_out() -> None:
    lengths = [Lengths(np.array([9, 9], np.int32), np.array([3, 8], np.int32))]
    data = {"dataset": "d", "max_seq_len": 8, "overlong": "crop"}
    steps = list(SFTSteps(config(data=data), Mixture([Source(2, 0, 2)], seed=0), lengths, 8))
    assert [use.row for step in steps for use in step.uses] == [0]


def test_packed_steps_account_for_every_token() -> None:
    packed = config(**PACKED)
    steps = list(SFTSteps(packed, mixture(), LENGTHS, 12))
    assert sum(use.tokens for step in steps for use in step.uses) == sum(TOKENS)
    for step in steps[:-1]:
        assert step.padded + sum(use.tokens for use in step.uses) == 24
    cropping = config(**(PACKED | {"packing": PACKED["packing"] | {"when_none_fits": "crop"}}))
    cut = list(SFTSteps(cropping, mixture(), LENGTHS, 12))
    assert all(step.padded == 0 for step in cut[:-1])
    kept = sum(use.tokens for step in cut for use in step.uses)
    assert kept + sum(step.lost for step in cut) == sum(TOKENS)


@pytest.mark.parametrize("changes", [{}, PACKED], ids=["rows", "packed"])
@pytest.mark.parametrize("after", [1, 2, 5])
def test_a_run_resumes_exactly_in_the_middle_of_an_epoch(
    changes: dict[str, Any], after: int
) -> None:
    made = config(**changes)
    made = made.model_copy(update={"training": made.training.model_copy(update={"max_steps": 12})})
    whole = SFTSteps(made, mixture(), LENGTHS, 12)
    steps = [whole.next() for _ in range(12)]
    at = steps[after - 1]
    assert at is not None

    again = SFTSteps(made, mixture(), LENGTHS, 12, at.position, at.waiting)

    assert [again.next() for _ in range(12 - after)] == steps[after:]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(1, 30), st.integers(0, 20)), min_size=1, max_size=40),
    epochs=st.sampled_from([0.4, 1.0, 2.5]),
    overlong=st.sampled_from(["crop", "skip"]),
    packing=st.sampled_from([None, "pad", "crop"]),
)
def test_the_step_count_equals_the_number_of_steps(
    rows: list[tuple[int, int]], epochs: float, overlong: str, packing: str | None
) -> None:
    made = config(
        data={"dataset": "d", "overlong": overlong},
        training={"epochs": epochs} | ({} if packing else {"rows_per_step": 3}),
        **({"packing": PACKED["packing"] | {"when_none_fits": packing}} if packing else {}),
    )
    tokens, first = np.array(rows, np.int32).T
    order = Mixture([Source(len(rows), 0, len(rows))], seed=2)
    lengths = [Lengths(tokens, first)]

    steps = list(SFTSteps(made, order, lengths, 12))
    assert step_count(made, order, lengths, 12) == len(steps)
    done = 0
    for step in steps:
        # Rows that wait to be packed are not trained yet.
        done += len(step.uses) + step.skipped
        assert step.done == done


def wasted(lengths: np.ndarray, buffer: int) -> int:
    """Padding in packed rows of 2,048 tokens."""
    rows, fit, following = 0, BestFit(2048, buffer, crop=None), iter(enumerate(lengths.tolist()))
    while fit.row(following):
        rows += 1
    return rows * 2048 - int(lengths.sum())


def test_best_fit_wastes_at_most_half_of_what_first_come_packing_wastes() -> None:
    """Mixed lengths: many short conversations and a tail up to the whole row."""
    drawn = np.random.Generator(np.random.PCG64(0)).lognormal(6.0, 1.0, 3000)
    lengths = np.clip(drawn, 16, 2048).astype(np.int64)
    # A buffer of one conversation is first-come packing.
    assert wasted(lengths, 100) <= 0.5 * wasted(lengths, 1)


def test_packed_rows_need_a_length_that_divides_the_step() -> None:
    with pytest.raises(
        ValueError, match=r"tokens_per_step 24 is no multiple of the 10 .* 20 or 30"
    ):
        SFTSteps(config(**PACKED), mixture(), LENGTHS, 10)
    with pytest.raises(ValueError, match=r"names no longest sequence, .* set data\.max_seq_len"):
        SFTSteps(config(**PACKED), mixture(), LENGTHS, None)
