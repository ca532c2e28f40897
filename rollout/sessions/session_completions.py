"""Turns the recorded turns of a group's sessions into completions and scores. Pure.

Only sampled tokens are trained: a session's own part of the first prompt, and the messages that
later turns add, are masked. A session is one completion, however many turns and branches it has.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from rollout.episodes import Completion
from rollout.rewards.combine import SampleScore, earned_score
from rollout.vllm.client.response import Sample, Span
from rollout.vllm.client.resume import joined, not_sampled
from services.contracts.groups.branches import Branch
from services.contracts.groups.sampling_mask import SamplingMask
from services.contracts.sessions import Reward, Turn, ids, tokens_of
from services.store.agents.sessions import PlayedSession

UNPLAYED = "the session ended without a turn to train"
IntArray = npt.NDArray[np.int64]


def shared_prompt(sessions: Sequence[PlayedSession]) -> list[int]:
    """Return the ids that all sessions with a turn begin with, in their first conversations. Raises
    ValueError if every session is without a turn, or if they share no beginning."""
    firsts = [next(iter(_in_order(session.turns)), None) for session in sessions]
    prompts = [
        session.turns[n].prompt
        for session, n in zip(sessions, firsts, strict=True)
        if n is not None
    ]
    if not prompts:
        raise ValueError("no session of the group has a turn")
    shared = prompts[0][: min(_common(prompts[0], prompt) for prompt in prompts)]
    if not shared:
        raise ValueError(
            "the sessions of the group begin with different tokens: their first messages must have "
            "a beginning in common, if only the one that the chat template writes"
        )
    return shared


def _in_order(turns: Sequence[Turn]) -> list[int]:
    """Return the numbers of the turns to train, ordered so that as many turns as possible directly
    follow the turn they continue. Side calls are left out unless a trained turn continues them."""
    needed = {n for n, turn in enumerate(turns) if not turn.side}
    for n in range(len(turns) - 1, -1, -1):
        if n in needed and turns[n].parent >= 0:
            needed.add(turns[n].parent)
    children: dict[int, list[int]] = {}
    for n in sorted(needed, key=lambda n: (turns[n].kept, -n)):
        children.setdefault(turns[n].parent, []).append(n)
    order: list[int] = []
    open_ = children.get(-1, [])[:]
    while open_:
        order.append(open_.pop())
        open_ += children.get(order[-1], [])
    return order


def _common(left_ids: npt.ArrayLike, right_ids: npt.ArrayLike) -> int:
    """Return how many first ids are equal."""
    a, b = np.asarray(left_ids), np.asarray(right_ids)
    size = min(len(a), len(b))
    differ = np.flatnonzero(a[:size] != b[:size])
    return int(differ[0]) if len(differ) else size


def completion(session: PlayedSession, prompt: Sequence[int], masks: bool) -> Completion:
    """Return a session as one completion after `prompt`, which all sessions of its group begin
    with.

    Each turn's own tokens occur once; a branch does not repeat its beginning. `masks`: whether the
    run has sampling masks.
    """
    turns = session.turns
    whole = not_sampled([], "stop")
    trained: list[bool] = []
    branches: list[Branch] = []
    # For the prompt (-1) and each turn: the ids of the conversation up to its end, and their
    # places, counted over prompt and completion.
    known: dict[int, tuple[IntArray, IntArray]] = {
        -1: (np.array(prompt, np.int64), np.arange(len(prompt)))
    }
    for number in _in_order(turns):
        turn = turns[number]
        from_, kept, added = turn.parent, turn.kept, ids(turn.added)
        if turn.parent < 0:
            # Conversations may begin with the same messages.
            shared = {n: _common(added, tokens) for n, (tokens, _) in known.items()}
            from_ = max(shared, key=lambda n: shared[n])
            kept = shared[from_]
            added = added[kept:]
        sample = not_sampled(turn.sampled.tolist(), "stop") if turn.side else _sample(turn)
        turn_tokens = joined(not_sampled(added.tolist(), "stop"), sample)
        tokens, places = (array[:kept] for array in known[from_])
        start = len(whole.token_ids)
        follows = int(places[-1]) + 1 if len(places) else 0
        if follows != len(prompt) + start and len(turn_tokens.token_ids):
            branches.append(Branch(start, follows))
        whole = joined(whole, turn_tokens)
        trained += [False] * len(added) + [not turn.side] * len(sample.token_ids)
        here = len(prompt) + np.arange(start, len(whole.token_ids))
        known[number] = np.append(tokens, turn_tokens.token_ids), np.append(places, here)
    mask = whole.sampling_mask
    if mask is None and masks:
        mask = SamplingMask.nothing(len(whole.token_ids))
    last = last_turn(turns)
    reason = "length" if session.spent else last.finish_reason if last else "stop"
    return Completion.of(
        replace(whole, finish_reason=reason),
        np.array(trained, dtype=np.bool_),
        sampling_mask=mask,
        branches=branches,
        turns=sum(not turn.side for turn in turns),
    )


def last_turn(turns: Sequence[Turn]) -> Turn | None:
    """Return a session's last recorded turn that is not a side call."""
    return next((turn for turn in reversed(turns) if not turn.side), None)


def transcript(turns: Sequence[Turn], last: Turn) -> tuple[list[int], list[int]]:
    """Return the conversation that ends with the turn `last`: the ids before its first answer, and
    the ids from there on."""
    path = [last]
    while path[-1].parent >= 0:
        path.append(turns[path[-1].parent])
    path.reverse()
    # A template that changes earlier turns may keep less than the first prompt.
    begins = min([len(path[0].prompt), *(turn.kept for turn in path[1:])])
    tokens = tokens_of(path)
    return tokens[:begins], tokens[begins:]


def answer_text(turn: Turn) -> str:
    message = turn.message
    return str(message.get("content") or message.get("text") or "")


def unplayed() -> SampleScore:
    """Return the score of a session without a turn to train."""
    return earned_score(Reward(error=UNPLAYED))


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
