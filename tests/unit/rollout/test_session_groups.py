"""A group's sessions become completions: each sampled token is trained, and no other."""

import numpy as np
import pytest

from rollout.rewards.combine import given
from rollout.sessions.groups import answer_text, completion, shared_prompt, unplayed
from services.contracts.sampling_mask import SamplingMask
from services.contracts.sessions import Reward, Turn, packed
from services.store.agent_sessions import Played


def turn(added: list[int], sampled: list[int], version: str = "a:1", text: str = "") -> Turn:
    return Turn(
        added=packed(added),
        token_ids=packed(sampled),
        logprobs=packed([-0.1 * token for token in sampled], "<f4"),
        versions=[(version, 0, len(sampled))],
        finish_reason="stop",
        message={"role": "assistant", "content": text},
        prompt_tokens=len(added),
        created=1,
    )


def test_a_session_is_one_completion_with_a_mask_over_what_it_was_told() -> None:
    turns = [turn([1, 2, 3], [10, 11]), turn([4, 5], [12], "a:2", "last")]
    made = completion(turns, 2, masks=False)

    assert made.token_ids.tolist() == [3, 10, 11, 4, 5, 12]
    assert made.loss_mask.tolist() == [False, True, True, False, False, True]
    np.testing.assert_allclose(made.logprobs, [0, -1.0, -1.1, 0, 0, -1.2], rtol=1e-6)
    assert [(s.start, s.end, s.version) for s in made.spans] == [(1, 3, "a:1"), (5, 6, "a:2")]
    assert made.finish_reason == "stop"
    assert made.sampling_mask is None
    assert answer_text(turns) == "last"


def test_the_prompt_is_what_all_sessions_begin_with() -> None:
    sessions = [
        Played([turn([1, 2, 3], [9])]),
        Played([]),
        Played([turn([1, 2, 4, 5], [9])]),
        Played([turn([1, 2], [9])]),
    ]
    assert shared_prompt(sessions) == [1, 2]
    assert completion([], 2, masks=False).token_ids.tolist() == []
    with pytest.raises(ValueError, match="no session of the group has a turn"):
        shared_prompt([Played([])])
    with pytest.raises(ValueError, match="begin with different tokens"):
        shared_prompt([Played([turn([1], [9])]), Played([turn([2], [9])])])


def test_sampling_masks_cover_sampled_tokens_alone() -> None:
    first, second = turn([1], [10]), turn([4, 5], [12])
    first.sampling_mask = SamplingMask.of([[10, 11]]).pack()
    second.sampling_mask = SamplingMask.of([[12, 13, 14]]).pack()
    mask = completion([first, second], 1, masks=True).sampling_mask
    assert mask is not None
    assert mask.counts.tolist() == [2, 0, 0, 3]
    empty = completion([], 1, masks=True).sampling_mask
    assert empty is not None
    assert len(empty.counts) == 0


def test_a_session_without_a_reward_is_masked_and_never_zero() -> None:
    assert given(Reward(reward=0.5, components={"x": 0.5})).components == {"x": 0.5}
    broken = given(Reward(error="the tool broke"))
    assert (broken.reward, broken.status, broken.detail) == (None, "error", "the tool broke")
    assert unplayed().reward is None
