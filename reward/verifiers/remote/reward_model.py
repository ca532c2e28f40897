"""The `model` verifier: a reward model scores the conversation or, with a parameter, the bare
answer.

The model runs in a child process (`reward.models`), or in a vLLM server started with a sequence
classification model. This process only asks.
"""

import asyncio
import math
import time
from collections.abc import Mapping
from typing import Any, Protocol

import httpx
from pydantic import Field

from reward.remote_endpoints import Endpoint, EndpointError, client
from reward.verifiers.base import Item, Message, RemoteParams, RemoteVerifier, Verdict, broken
from reward.verifiers.math.final_answer import tagged
from reward.verifiers.remote.judge import chosen
from services.contracts.scores import ScoreStatus


class ModelParams(RemoteParams):
    """The model, and the reward for its raw score r: clip((r − bias) · scale, ±clip)."""

    model: str | None = Field(
        None, description="Name of the reward model; not needed if there is only one."
    )
    label: int = Field(0, ge=0, description="Which of the model's outputs is the score.")
    bias: float = Field(0.0, allow_inf_nan=False, description="Taken off the raw score first.")
    scale: float = Field(1.0, allow_inf_nan=False, description="Then it is multiplied by this.")
    clip: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="Then it is cut off at ± this; null: nowhere."
    )
    answer_weight: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Share of the reward for the content of the <answer> tag, scored by itself; "
        "the rest is for the whole completion. Where there is no such tag the whole alone counts.",
    )


class ModelError(Exception):
    """The model has no score for this text. The message says why."""


class RewardModel(Protocol):
    """A source of raw scores."""

    @property
    def loading(self) -> bool:
        """Tell whether the model is in its first load."""

    async def open(self) -> None:
        """Called once, before the first `scores`."""

    async def close(self) -> None:
        """Called once."""

    async def scores(self, messages: list[Message]) -> tuple[list[float], bool]:
        """Return one score a label for the last message, and whether the beginning was cut off.
        Raises ModelError, EndpointError."""


class RemoteModel:
    """A reward model that a vLLM server serves. The path is `/classify`, unless the URL itself ends
    with it or with `/pooling`."""

    ATTEMPTS = 5
    loading = False

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._path = "" if endpoint.url.endswith(("/classify", "/pooling")) else "/classify"
        self._http: httpx.AsyncClient

    async def open(self) -> None:
        self._http = client()

    async def close(self) -> None:
        await self._http.aclose()

    async def scores(self, messages: list[Message]) -> tuple[list[float], bool]:
        """Implements `RewardModel.scores`. The server does not report whether it cut anything
        off."""
        body = {
            "messages": messages,
            # Ask for the raw score: a sigmoid or softmax would be flat for good answers.
            "use_activation": False,
            "truncate_prompt_tokens": -1,
            "truncation_side": "left",
        }
        reply = await self._endpoint.ask(self._http, self._path, body, self.ATTEMPTS)
        return _raw(reply, self._endpoint.name), False


class ModelVerifier(RemoteVerifier[ModelParams]):
    """Asks reward models. The reward is any number, unless `clip` bounds it."""

    name = "model"
    description = "A reward model's score of the conversation, scaled and clipped."
    Params = ModelParams

    def __init__(self, models: Mapping[str, RewardModel]) -> None:
        self._models = models
        self._opened = False
        self._began = 0.0

    @property
    def loading(self) -> str:
        """Implements `RemoteVerifier.loading`. Models are loaded one after the other."""
        models = list(self._models.values())
        at = next((at for at, model in enumerate(models, 1) if model.loading), None)
        if at is None:
            return ""
        seconds = time.monotonic() - self._began
        return f"reward model {at} of {len(models)} is being loaded, for {seconds:.0f} s"

    @property
    def ready(self) -> bool:
        """Implements `RemoteVerifier.ready`: all models have been loaded."""
        return self._opened

    async def open(self) -> None:
        """Implements `RemoteVerifier.open`. Raises ModelLoadError."""
        for model in self._models.values():
            self._began = time.monotonic()
            await model.open()
        self._opened = True

    async def close(self) -> None:
        for model in self._models.values():
            await model.close()

    def check(self, params: ModelParams) -> None:
        chosen(self._models, params.model, "model", "--reward-models")

    async def score(self, item: Item, params: ModelParams) -> Verdict:
        model = chosen(self._models, params.model, "model", "--reward-models")
        answer = tagged(item.after_thoughts) if params.answer_weight else None
        try:
            texts = [item.completion] if answer is None else [item.completion, answer]
            (whole, cut), *parts = await asyncio.gather(
                *(_ask(model, item, text, params) for text in texts)
            )
        except (ModelError, EndpointError) as error:
            return broken(str(error))
        reward, components = whole, {}
        for bare, _ in parts:
            reward = (1 - params.answer_weight) * whole + params.answer_weight * bare
            components = {"whole": whole, "answer": bare}
        detail = "the beginning of the conversation was cut off" if cut else ""
        return Verdict(ScoreStatus.SCORED, reward, detail, components)


async def _ask(
    model: RewardModel, item: Item, answer: str, params: ModelParams
) -> tuple[float, bool]:
    """Return the reward for one text, and whether the beginning was cut off."""
    scores, cut = await model.scores(_conversation(item, answer))
    if params.label >= len(scores):
        raise ModelError(f"the model has {len(scores)} outputs; there is no label {params.label}")
    if not math.isfinite(scores[params.label]):
        # `min` and `max` would make the best reward of NaN.
        raise ModelError(f"the model's score {scores[params.label]} is not finite")
    return shaped(scores[params.label], params), cut


def shaped(score: float, params: ModelParams) -> float:
    """Return the reward for a raw score."""
    reward = (score - params.bias) * params.scale
    return reward if params.clip is None else max(-params.clip, min(params.clip, reward))


def _conversation(item: Item, answer: str) -> list[Message]:
    if isinstance(item.prompt, str):
        asked: list[Message] = [{"role": "user", "content": item.prompt}]
    else:
        asked = item.prompt
    return [*asked, {"role": "assistant", "content": answer}]


def _raw(reply: Any, name: str) -> list[float]:
    """Read vLLM's reply to `/classify` (`probs`) or `/pooling` (`data`: a row, or one a token)."""
    try:
        (entry,) = reply["data"]
        row = entry["probs"] if "probs" in entry else entry["data"]
        if row and isinstance(row[0], list):
            row = row[-1]
        return [float(score) for score in row]
    except (KeyError, TypeError, ValueError):
        raise EndpointError(f"endpoint {name!r} answers neither classes nor a pooled row") from None
