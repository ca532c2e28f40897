"""Each pass over a batch cuts it anew, and every process makes the same cut."""

from learner.batch.minibatches import cut

POSITIONS = [40, 3, 17, 8, 21, 5, 30, 12, 9]


def test_each_pass_trains_every_group_once_in_minibatches_of_its_own() -> None:
    passes = [cut(POSITIONS, 3, 0, 7, number) for number in range(4)]

    for one in passes:
        assert [len(part) for part in one] == [3, 3, 3]
        assert sorted(position for part in one for position in part) == sorted(POSITIONS)
    assert len({str([sorted(part) for part in one]) for one in passes}) == 4


def test_the_cut_depends_on_seed_step_and_pass_and_not_on_the_order_of_the_groups() -> None:
    assert cut(POSITIONS, 2, 0, 7, 1) == cut(sorted(POSITIONS), 2, 0, 7, 1)
    found = [cut(POSITIONS, 2, *key) for key in ((0, 7, 1), (1, 7, 1), (0, 8, 1))]
    assert found[0] not in found[1:]


def test_a_single_minibatch_keeps_the_order_of_the_batch() -> None:
    assert cut(POSITIONS, 1, 0, 7, 1) == [POSITIONS]
