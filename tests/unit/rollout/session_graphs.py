"""Random sessions with branches, for tests of how they are trained."""

from random import Random

from rollout.rewards.combine import earned_score
from rollout.sessions.session_completions import completion, shared_prompt
from rollout.work.group import Sampled
from rollout.work.group_assembly import Origin, assemble
from services.contracts.groups.trajectory import TrajectoryGroup, decode, encode
from services.contracts.sessions import Reward, Turn, packed, tokens_of
from services.store.agents.sessions import PlayedSession

FIRST = [1, 7, 4]
"""The tokens that most conversations begin with."""


def turn(
    added: list[int],
    sampled: list[int],
    version: str = "a:1",
    text: str = "",
    parent: int = -1,
    kept: int = 0,
    side: bool = False,
) -> Turn:
    return Turn(
        parent=parent,
        kept=kept,
        side=side,
        added=packed(added),
        token_ids=packed(sampled),
        logprobs=packed([-0.1 * token for token in sampled], "<f4"),
        versions=[(version, 0, len(sampled))],
        finish_reason="stop",
        message={"role": "assistant", "content": text},
        prompt_tokens=len(added),
        created=1,
    )


def path(turns: list[Turn], number: int) -> list[Turn]:
    """Return the turns of the conversation that ends with this turn."""
    found: list[Turn] = []
    while number >= 0:
        found.insert(0, turns[number])
        number = turns[number].parent
    return found


def random_session(chance: Random, most: int = 7, side_calls: bool = True) -> list[Turn]:
    """Return turns that continue each other, fork, rewrite earlier text, or start again. There are
    few different tokens, so that branches share more than they have to."""

    def some(least: int, most: int) -> list[int]:
        return [chance.randrange(4, 7) for _ in range(chance.randint(least, most))]

    turns = [turn([*FIRST, *some(0, 3)], some(1, 4))]
    for number in range(1, chance.randint(1, most)):
        side = side_calls and chance.random() < 0.2
        version = f"a:{chance.randint(1, 2)}"
        if chance.random() < 0.2:
            begins = FIRST if chance.random() < 0.7 else []
            turns.append(turn([*begins, *some(1, 3)], some(1, 4), version, side=side))
            continue
        parent = chance.choice([number - 1, chance.randrange(number)])
        length = len(tokens_of(path(turns, parent)))
        kept = length if chance.random() < 0.7 else chance.randrange(1, length)
        added = some(0 if kept < length else 1, 3)
        turns.append(turn(added, some(1, 4), version, parent=parent, kept=kept, side=side))
    return turns


def group_of(sessions: list[list[Turn]], rewards: list[float | None]) -> TrajectoryGroup:
    """Return the group of these sessions as the learner reads it."""
    prompt = shared_prompt([PlayedSession(turns) for turns in sessions])
    made = [completion(PlayedSession(turns), prompt, masks=False) for turns in sessions]
    scores = [earned_score(Reward(reward=reward)) for reward in rewards]
    origin = Origin("r", 5, "x", "w", 3, "a", 0.0)
    return decode(encode(assemble(origin, Sampled(prompt, made, scores))))
