"""The reward for a reward model's raw score."""

import math

import pytest

from reward.verifiers.base import Item, Message
from reward.verifiers.remote.reward_model import ModelParams, ModelVerifier
from services.contracts.scores import ScoreStatus

ITEM = Item("model", "1+1?", "2", None, {})


class Model:
    """A reward model that gives one score to everything."""

    loading = False

    def __init__(self, score: float) -> None:
        self._score = score

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def scores(self, messages: list[Message]) -> tuple[list[float], bool]:
        return [self._score], False


async def test_a_score_is_scaled_and_clipped() -> None:
    verifier = ModelVerifier({"m": Model(3.0)})
    params = ModelParams(timeout=1, bias=1, scale=2, clip=3)
    assert (await verifier.score(ITEM, params)).reward == 3
    assert (await verifier.score(ITEM, params.model_copy(update={"clip": None}))).reward == 4


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("clip", [None, 1.0])
async def test_a_score_that_is_not_finite_is_an_error(score: float, clip: float | None) -> None:
    params = ModelParams(timeout=1, clip=clip)
    verdict = await ModelVerifier({"m": Model(score)}).score(ITEM, params)
    assert (verdict.status, verdict.reward) == (ScoreStatus.ERROR, None)
    assert "not finite" in verdict.detail
