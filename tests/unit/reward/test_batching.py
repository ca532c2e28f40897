"""The conversations that a reward model takes into its next forward pass."""

from hypothesis import given
from hypothesis import strategies as st

from reward.models.batching import next_batch


def test_a_batch_takes_all_conversations_if_they_fit() -> None:
    assert next_batch([10, 10, 10], batch_tokens=30) == [0, 1, 2]


def test_a_batch_takes_the_oldest_and_those_nearest_in_length() -> None:
    # 12 · 3 = 36 fit into 40; with a fourth it would be 48, or 400 with the long one.
    assert next_batch([11, 100, 12, 1, 10], batch_tokens=40) == [0, 2, 4]


def test_a_batch_holds_one_conversation_even_if_it_does_not_fit() -> None:
    assert next_batch([100, 1], batch_tokens=40) == [0]


@given(
    st.lists(st.integers(1, 200), min_size=1, max_size=40), st.integers(min_value=1, max_value=2000)
)
def test_every_batch_holds_the_oldest_and_keeps_the_limit(lengths: list[int], limit: int) -> None:
    batch = next_batch(lengths, limit)

    assert batch[0] == 0
    assert len(set(batch)) == len(batch)
    assert len(batch) == 1 or max(lengths[index] for index in batch) * len(batch) <= limit
