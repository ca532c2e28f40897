"""Episodes in which the policy calls tools of MCP servers, or Python in the sandbox.

vLLM's parser finds the calls in the sampled tokens. The text between two answers (results and the
template's own tokens) is rendered as in an agent's session (`text.chat_rendering`), so sampled
tokens stay as they are.

A mistake of the policy becomes the call's result. If a tool is unreachable or too slow, nobody
knows what the policy would have read: the sample is not trained, and its reward is unknown instead
of 0.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rollout.aio import together
from rollout.episodes import Completion, Reward, Sampler, UnusableEpisode
from rollout.text.answer_text import prefill
from rollout.text.chat_rendering import added
from rollout.tools import NoSession, ToolsAway
from rollout.tools.offer import Offer
from rollout.tools.results import marker_pattern, readable, without_markers
from rollout.tools.toolbox import RunTools, Toolbox
from rollout.vllm.client.response import Sample
from rollout.vllm.client.resume import joined, not_sampled
from rollout.vllm.model_files import TokenizerLike
from services.contracts.rows.dataset import Row
from services.contracts.rows.rendering import NO_TEMPLATE, chat_text

CALLS_AT_ONCE = 16
"""Calls of one answer that are executed. They run one after the other, since they may have
effects."""
PROBE = [{"role": "user", "content": "a"}]


@dataclass
class _Play:
    index: int
    """Its index in the group."""
    whole: Sample
    trained: npt.NDArray[np.bool_]
    since: int = 0
    """The token at which the last answer begins."""
    answers: int = 1
    text: str = ""
    """The last answer, as verifiers read it."""
    prefill: str = ""
    """See Completion."""

    def add(self, more: Sample, sampled: bool) -> None:
        if sampled:
            self.since = len(self.whole.token_ids)
            self.answers += 1
        self.whole = joined(self.whole, more)
        self.trained = np.append(self.trained, np.full(len(more.token_ids), sampled))


class ToolsEpisode:
    """Samples the first answers of a group in one request. From there each completion continues
    alone."""

    def __init__(self, tools: RunTools, tokenizer: TokenizerLike) -> None:
        """Raises UnusableEpisode if the model's chat template does not describe tools."""
        self._tools = tools
        self._config = tools.config
        self._markers = marker_pattern(tokenizer.get_added_vocab())
        self._offered: Offer | None = None
        example = {"type": "function", "function": {"name": "a", "parameters": {"type": "object"}}}
        try:
            if not tokenizer.chat_template:
                raise ValueError(NO_TEMPLATE)
            described = chat_text(PROBE, tokenizer, [example]) != chat_text(PROBE, tokenizer)
        except ValueError as error:
            raise UnusableEpisode(f"rollout.episode tools: {error}") from error
        if not described:
            raise UnusableEpisode(
                "rollout.episode tools: the model's chat template leaves tools out, so that the "
                "policy would not know of any: choose a model whose template describes them"
            )

    async def described(self) -> list[dict[str, Any]]:
        """See `episodes.DescribesTools`. Raises ToolsAway."""
        return (await self._offer()).tools

    async def run(
        self, row: Row, prompt_tokens: list[int], n: int, sampler: Sampler
    ) -> list[Completion]:
        """See `Episode.run`. Raises NoSession if no completion reached its tools."""
        until = asyncio.get_running_loop().time() + self._config.episode_seconds
        offered = await self._offer()
        begun = await sampler.sample(prompt_tokens, n)
        played = await together(
            self._finished(prompt_tokens, index, sample, sampler, offered, until)
            for index, sample in enumerate(begun)
        )
        away = [error for _, error in played if isinstance(error, NoSession)]
        if len(away) == n:
            # The prompt is not at fault, and would be dropped after its third failure: let the
            # group wait.
            raise away[0]
        return [completion for completion, _ in played]

    async def _offer(self) -> Offer:
        if self._offered is None:
            self._offered = (await self._tools.offer()).without(self._markers)
        return self._offered

    async def _finished(
        self,
        prompt: list[int],
        index: int,
        first: Sample,
        sampler: Sampler,
        offered: Offer,
        until: float,
    ) -> tuple[Completion, ToolsAway | None]:
        """Return the completion, and the tool error that masked it, if any."""
        play = _Play(index, first, np.ones(len(first.token_ids), dtype=np.bool_))
        reward = away = None
        try:
            async with asyncio.timeout_at(until) as limit, Toolbox(self._tools, offered) as toolbox:
                await self._turns(prompt, play, sampler, offered, toolbox)
        except ToolsAway as error:
            away, reward = error, Reward(error=str(error))
        except TimeoutError:
            if not limit.expired():
                raise
            took = f"the episode took longer than {self._config.episode_seconds:g} s"
            reward = Reward(error=f"{took} (rollout.episode.episode_seconds)")
        completion = Completion.of(
            play.whole,
            play.trained,
            text=play.text,
            prefill=play.prefill,
            reward=reward,
            turns=play.answers,
        )
        return completion, away

    async def _turns(
        self, prompt: list[int], play: _Play, sampler: Sampler, offered: Offer, toolbox: Toolbox
    ) -> None:
        for turn in range(1, self._config.max_turns + 1):
            answer = play.whole.token_ids[play.since :].tolist()
            message = await sampler.message(answer, offered.tools)
            play.text = message.get("content") or ""
            begun = [*prompt, *play.whole.token_ids[: play.since].tolist()]
            play.prefill = prefill(sampler.tokenizer, begun, message)
            calls = [self._without_markers(call) for call in message.get("tool_calls") or []]
            if not calls or play.whole.finish_reason != "stop":
                return
            if turn == self._config.max_turns:
                break
            results = await self._results(calls, toolbox, sampler.tokenizer)
            conversation = [{**message, "tool_calls": calls}, *results]
            shown = await added(
                conversation, 1, offered.tools, answer, sampler.ends, sampler.tokenizer
            )
            if len(play.whole.token_ids) + len(shown) >= sampler.most_tokens(prompt):
                break
            play.add(not_sampled(shown, "stop"), sampled=False)
            done = len(play.whole.token_ids)
            begun = [*prompt, *play.whole.token_ids.tolist()]
            (more,) = await sampler.sample(begun, 1, index=play.index, done=done)
            play.add(more, sampled=True)
        # The answer ends with a call, but the episode has reached its limit.
        play.add(not_sampled([], "length"), sampled=False)

    async def _results(
        self, calls: Sequence[dict[str, Any]], toolbox: Toolbox, tokenizer: TokenizerLike
    ) -> list[dict[str, Any]]:
        messages = []
        for number, call in enumerate(calls):
            function = call["function"]
            if number < CALLS_AT_ONCE:
                text = await toolbox.call(function["name"], function["arguments"])
            else:
                text = f"error: an answer may make {CALLS_AT_ONCE} calls"
            limit = self._config.result_tokens
            messages.append(
                {
                    "role": "tool",
                    "tool_call_id": call.get("id"),
                    "name": function["name"],
                    "content": await readable(text, limit, self._markers, tokenizer),
                }
            )
        return messages

    def _without_markers(self, call: dict[str, Any]) -> dict[str, Any]:
        """Return the call with a name and an id that spell no special token. Templates write both,
        and the policy may have spelled a special token in ordinary tokens."""
        function = call["function"]
        name = without_markers(function["name"], self._markers)
        id = call.get("id") and without_markers(call["id"], self._markers)
        return {**call, "id": id, "function": {**function, "name": name}}
