"""How long answers of a long-reasoning run are, and what GPUs would need for them. Pure.

Each sequence is sampled at one rate, whatever else is sampled, up to SEQUENCES at once on a GPU;
further ones wait their turn. An updated policy answers as the one before.
"""

import math
import random
from collections.abc import Sequence

GPUS, GENERATING = 4, 3
"""In all, and of these for generation; one trains. AReaL divides so, too."""
SEQUENCES = 64
PROMPTS, SAMPLES = 32, 8
"""Of a step: its answers fit into all GPUs at once, as a synchronous run would have it."""
LONGEST = 512
"""Tokens, each of which stands for 64: a context of 32,768."""
MEDIAN, SPREAD = 80.0, 0.65
"""Lengths are lognormal, truncated at LONGEST: so far apart (sigma) are prompts, and so far apart
again the answers to one prompt. 2 in 100 are truncated; the mean is a quarter of the longest."""
TOKEN_SECONDS = 0.01
TRAINING = 1.0
"""Seconds that one GPU takes to train a batch, over those that the generating ones need to sample
it. At 1 neither side has anything to spare."""


def lengths(seed: str) -> list[int]:
    """Tokens of each answer to one prompt; the same whenever it is sampled."""
    source = random.Random(seed)
    prompt = source.gauss(0, SPREAD)
    drawn = [MEDIAN * math.exp(prompt + source.gauss(0, SPREAD)) for _ in range(SAMPLES)]
    return [max(1, min(LONGEST, round(length))) for length in drawn]


def generation_seconds(tokens: float) -> float:
    """What the generating GPUs need, all of them full all the time."""
    return tokens * TOKEN_SECONDS / (GENERATING * SEQUENCES)


def training_seconds(tokens: float) -> float:
    """What the training GPU needs."""
    return TRAINING * generation_seconds(tokens)


def ideal_seconds(tokens: float) -> float:
    """What the slower of the two sides needs if it never waits."""
    return max(generation_seconds(tokens), training_seconds(tokens))


def synchronous_seconds(answers: Sequence[int]) -> float:
    """A step without any overlap, all GPUs generating at once and then all training. `answers` has
    the tokens of each. Nothing else costs anything. Raises ValueError where they do not fit."""
    if len(answers) > GPUS * SEQUENCES:
        raise ValueError(f"{len(answers)} answers do not fit into {GPUS} x {SEQUENCES} sequences")
    training = training_seconds(sum(answers)) * (GPUS - GENERATING) / GPUS
    return max(answers) * TOKEN_SECONDS + training


def synchronous_seconds_per_token(batches: int = 1000) -> float:
    """Over so many batches of the distribution."""
    seconds = tokens = 0.0
    for batch in range(batches):
        answers = [n for prompt in range(PROMPTS) for n in lengths(f"{batch}/{prompt}")]
        seconds += synchronous_seconds(answers)
        tokens += sum(answers)
    return seconds / tokens
