"""Evaluation and training divide vLLM."""

from rollout.work.evaluation_share import evaluation_rows, training_groups


def test_each_side_has_its_share_of_a_full_vllm_and_what_the_other_leaves() -> None:
    assert evaluation_rows(64, training=64, share=0.25, samples=4) == 4
    assert evaluation_rows(64, training=8, share=0.25, samples=4) == 14
    assert training_groups(64, evaluation=64, share=0.25, samples=8) == 6
    assert training_groups(64, evaluation=8, share=0.25, samples=8) == 7


def test_each_side_has_at_least_one_row() -> None:
    assert evaluation_rows(8, training=8, share=0.1, samples=4) == 1
    assert training_groups(8, evaluation=8, share=0.9, samples=8) == 1


def test_an_evaluation_without_a_share_may_fill_vllm() -> None:
    assert evaluation_rows(64, training=64, share=None, samples=4) == 16
