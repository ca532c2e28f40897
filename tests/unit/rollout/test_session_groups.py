"""A group's sessions become completions: exactly the sampled tokens are trained."""

from random import Random

import numpy as np
import pytest

from rollout.rewards.combine import earned_score
from rollout.sessions.session_completions import (
    answer_text,
    completion,
    last_turn,
    shared_prompt,
    unplayed,
)
from services.contracts.groups.branches import Branch, conversations
from services.contracts.groups.sampling_mask import SamplingMask
from services.contracts.sessions import Reward, tokens_of
from services.store.agents.sessions import PlayedSession
from tests.unit.rollout.session_graphs import group_of, path, random_session, turn


def test_a_session_is_one_completion_with_a_mask_over_its_messages() -> None:
    turns = [
        turn([1, 2, 3], [10, 11]),
        turn([4, 5], [12], "a:2", "last", parent=0, kept=5),
    ]
    made = completion(PlayedSession(turns), [1, 2], masks=False)

    assert made.token_ids.tolist() == [3, 10, 11, 4, 5, 12]
    assert made.loss_mask.tolist() == [False, True, True, False, False, True]
    np.testing.assert_allclose(made.logprobs, [0, -1.0, -1.1, 0, 0, -1.2], rtol=1e-6)
    assert [(s.start, s.end, s.version) for s in made.spans] == [(1, 3, "a:1"), (5, 6, "a:2")]
    assert made.finish_reason == "stop"
    assert made.sampling_mask is None
    assert (made.branches, made.turns) == ([], 2)
    last = last_turn(turns)
    assert last is not None
    assert answer_text(last) == "last"


def test_a_branch_does_not_repeat_its_beginning() -> None:
    turns = [
        turn([1, 2], [10, 11]),
        turn([4], [12], parent=0, kept=4),
        turn([5], [13], parent=0, kept=4),  # a fork
        turn([1, 2, 6], [14]),  # another conversation, with the same beginning
        turn([7], [15], parent=1, kept=3),  # the template rewrote the end of the first answer
        turn([8], [16], parent=1, kept=6),  # goes on
    ]
    made = completion(PlayedSession(turns), [1, 2], masks=False)

    assert made.token_ids.tolist() == [10, 11, 4, 12, 8, 16, 7, 15, 5, 13, 6, 14]
    assert made.branches == [Branch(6, 3), Branch(8, 4), Branch(10, 2)]
    found = conversations(2, len(made.token_ids), made.branches)
    whole = [[1, 2][: one.prompt] + made.token_ids[one.places].tolist() for one in found]
    assert whole == [
        [1, 2, 10, 11, 4, 12, 8, 16],
        [1, 2, 10, 7, 15],
        [1, 2, 10, 11, 5, 13],
        [1, 2, 6, 14],
    ]
    assert [one.new.sum() for one in found] == [6, 2, 2, 2]


def test_a_side_call_is_not_trained_but_a_trained_turn_may_continue_it() -> None:
    turns = [
        turn([1, 2], [10]),
        turn([1, 3], [11], side=True),
        turn([4], [12], parent=0, kept=3, text="no title", side=True),
        turn([5], [13], parent=2, kept=5, text="answer"),
        turn([6], [14], parent=0, kept=3, text="title", side=True),
    ]
    made = completion(PlayedSession(turns), [1], masks=False)
    assert made.token_ids.tolist() == [2, 10, 4, 12, 5, 13]
    assert made.loss_mask.tolist() == [False, True, False, False, False, True]
    assert [(s.start, s.end) for s in made.spans] == [(1, 2), (5, 6)]
    assert made.turns == 2
    last = last_turn(turns)
    assert last is turns[3]
    alone = completion(PlayedSession(turns[1:2]), [1], masks=False)
    assert (len(alone.token_ids), alone.turns, last_turn(turns[1:2])) == (0, 0, None)


@pytest.mark.parametrize("seed", range(60))
def test_each_sampled_token_is_trained_once_after_the_tokens_it_followed(seed: int) -> None:
    chance = Random(seed)
    sessions = [random_session(chance) for _ in range(3)]
    if not any(not one.side for turns in sessions for one in turns):
        pytest.skip("side calls alone")
    group = group_of(sessions, [1.0] * 3)
    start = 0
    for sample, (turns, length) in enumerate(zip(sessions, group.lengths.tolist(), strict=True)):
        tokens, mask = (one[start : start + length] for one in (group.tokens, group.loss_mask))
        logprobs = group.logprobs[start : start + length]
        start += length
        trained: list[tuple[list[int], float]] = []
        for one in group.conversations_of(sample):
            prompt = group.prompt_tokens[: one.prompt].tolist()
            whole = [*prompt, *tokens[one.places].tolist()]
            for at in np.flatnonzero(mask[one.places] & one.new):
                seen = whole[: len(prompt) + at + 1]
                trained.append((seen, float(logprobs[one.places][at])))
        sampled: list[tuple[list[int], float]] = []
        for number, of in enumerate(turns):
            whole = tokens_of(path(turns, number))
            for back in range(0 if of.side else len(of.sampled)):
                seen = whole[: len(whole) - back]
                sampled.append((seen, float(np.float32(-0.1 * seen[-1]))))
        assert sorted(trained) == sorted(sampled)


def test_the_prompt_is_the_common_beginning_of_all_sessions() -> None:
    sessions = [
        PlayedSession([turn([1, 2, 3], [9])]),
        PlayedSession([]),
        PlayedSession([turn([8], [9], side=True), turn([1, 2, 4, 5], [9])]),
        PlayedSession([turn([1, 2], [9])]),
    ]
    assert shared_prompt(sessions) == [1, 2]
    assert completion(PlayedSession(), [1, 2], masks=False).token_ids.tolist() == []
    with pytest.raises(ValueError, match="no session of the group has a turn"):
        shared_prompt([PlayedSession([])])
    with pytest.raises(ValueError, match="begin with different tokens"):
        shared_prompt([PlayedSession([turn([1], [9])]), PlayedSession([turn([2], [9])])])


def test_sampling_masks_cover_sampled_tokens_alone() -> None:
    first, second = turn([1], [10]), turn([4, 5], [12], parent=0, kept=2)
    first.sampling_mask = SamplingMask.of([[10, 11]]).pack()
    second.sampling_mask = SamplingMask.of([[12, 13, 14]]).pack()
    mask = completion(PlayedSession([first, second]), [1], masks=True).sampling_mask
    assert mask is not None
    assert mask.counts.tolist() == [2, 0, 0, 3]
    empty = completion(PlayedSession(), [1], masks=True).sampling_mask
    assert empty is not None
    assert len(empty.counts) == 0


def test_a_session_without_a_reward_is_masked_and_never_zero() -> None:
    assert earned_score(Reward(reward=0.5, components={"x": 0.5})).components == {"x": 0.5}
    broken = earned_score(Reward(error="the tool broke"))
    assert (broken.reward, broken.status, broken.detail) == (None, "error", "the tool broke")
    assert unplayed().reward is None
