"""How evaluation and training divide vLLM."""

from rollout.work.evaluation_share import evaluation_rows, training_groups


def test_each_has_its_share_of_a_full_vllm_and_more_where_the_other_leaves_it() -> None:
    assert evaluation_rows(64, training=64, share=0.25, samples=4) == 4
    assert evaluation_rows(64, training=8, share=0.25, samples=4) == 14
    assert training_groups(64, evaluation=64, share=0.25, samples=8) == 6
    assert training_groups(64, evaluation=8, share=0.25, samples=8) == 7


def test_each_has_one_row_where_its_share_has_no_room_for_one() -> None:
    assert evaluation_rows(8, training=8, share=0.1, samples=4) == 1
    assert training_groups(8, evaluation=8, share=0.9, samples=8) == 1


def test_an_evaluation_without_a_share_has_all_of_vllm() -> None:
    assert evaluation_rows(64, training=64, share=None, samples=4) == 16
