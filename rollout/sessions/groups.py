"""From the recorded turns of a group's sessions to completions and scores. Pure.

All that was not sampled is masked: a session's own part of the first prompt, and what later turns
add. A session is one completion, whatever its number of turns.
"""

from collections.abc import Sequence

import numpy as np

from rollout.episodes import Completion
from rollout.rewards.combine import SampleScore, given
from rollout.vllm.response import Sample, Span
from rollout.vllm.resume import joined, not_sampled
from services.contracts.sampling_mask import SamplingMask
from services.contracts.sessions import Reward, Turn, ids
from services.store.agent_sessions import Played

UNPLAYED = "the session ended without a turn"


def shared_prompt(sessions: Sequence[Played]) -> list[int]:
    """The ids that all sessions with a turn begin with. Raises ValueError without any, or if they
    have nothing in common."""
    prompts = [one.turns[0].prompt for one in sessions if one.turns]
    if not prompts:
        raise ValueError("no session of the group has a turn")
    lowest, highest = min(prompts), max(prompts)
    length = next(
        (at for at, (a, b) in enumerate(zip(lowest, highest, strict=False)) if a != b),
        len(lowest),
    )
    found = lowest[:length]
    if not found:
        raise ValueError(
            "the sessions of the group begin with different tokens: their first messages must have "
            "a beginning in common, if only the one that the chat template writes"
        )
    return found


def completion(turns: Sequence[Turn], shared: int, masks: bool) -> Completion:
    """A session after the first `shared` ids of its first prompt; `masks`: with a sampling mask, as
    the run has one."""
    whole = not_sampled([], "stop")
    trained: list[bool] = []
    for number, turn in enumerate(turns):
        before = turn.prompt[shared:] if number == 0 else turn.prompt
        sample = _sample(turn)
        whole = joined(joined(whole, not_sampled(before, "stop")), sample)
        trained += [False] * len(before) + [True] * len(sample.token_ids)
    mask = whole.sampling_mask
    if mask is None and masks:
        mask = SamplingMask.nothing(len(whole.token_ids))
    return Completion(
        token_ids=whole.token_ids,
        loss_mask=np.array(trained, dtype=np.bool_),
        logprobs=whole.logprobs,
        spans=whole.spans,
        finish_reason=whole.finish_reason,
        sampling_mask=mask,
    )


def answer_text(turns: Sequence[Turn]) -> str:
    """What verifiers read: the last answer."""
    message = turns[-1].message
    return str(message.get("content") or message.get("text") or "")


def unplayed() -> SampleScore:
    """Of a session without a turn: nothing to train."""
    return given(Reward(error=UNPLAYED))


def _sample(turn: Turn) -> Sample:
    token_ids = turn.sampled
    packed = turn.sampling_mask
    return Sample(
        token_ids=token_ids,
        logprobs=np.frombuffer(turn.logprobs, "<f4"),
        finish_reason=turn.finish_reason,
        spans=[Span(start, end, version) for version, start, end in turn.versions],
        sampling_mask=None
        if packed is None
        else SamplingMask.unpack(len(ids(turn.token_ids)), packed),
    )
