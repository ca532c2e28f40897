"""Samples the turns of one prompt with vLLM, and parses answers into messages."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from rollout.text.answer_text import text_of
from rollout.text.chat_rendering import QUESTION
from rollout.vllm.client.policy_client import Interrupted, PastDeadline, RequestRefused
from rollout.vllm.client.response import Sample, sampling_params, stopping_after
from rollout.vllm.client.resume import DEADLINE, Begun, mixed, not_sampled, rest_of
from rollout.vllm.model_files import answer_tokens
from rollout.vllm_plugin.wire import Parsed
from rollout.work.run_context import RunContext
from services.contracts.config.rollout import Sampling
from services.contracts.sessions import Call

STAND_IN = [{"role": "user", "content": QUESTION}]
"""Stands for the conversation before an answer: parsers read only the answer."""


class PromptSampler:
    """`episodes.Sampler` for one task: applies the run's options, its seed, and the token
    limits."""

    def __init__(
        self,
        context: RunContext,
        sampling: Sampling,
        seed: int | None,
        expired: asyncio.Event | None = None,
        leaving: asyncio.Event | None = None,
        begun: Begun | None = None,
    ) -> None:
        """`expired` is set at the group's deadline, `leaving` when the worker leaves. `begun`:
        samples of the group's first turn that another worker has begun."""
        self.tokenizer = context.tokenizer
        self.ends = frozenset(context.eos)
        self._context = context
        self._sampling = sampling
        self._seed = seed
        self._expired, self._leaving = expired, leaving
        self._begun = begun
        self._is_first = True
        self._added_tokens = context.tokenizer.get_added_vocab()

    def most_tokens(self, prompt_tokens: Sequence[int]) -> int:
        """See `episodes.Sampler.most_tokens`. Raises PromptTooLong if no token is left."""
        return min(
            self._sampling.max_tokens, answer_tokens(list(prompt_tokens), self._context.context)
        )

    async def sample(
        self, token_ids: Sequence[int], n: int, stop: str = "", index: int = 0, done: int = 0
    ) -> list[Sample]:
        """See `episodes.Sampler.sample`. Raises PromptTooLong if the context is full, and
        Interrupted when the worker leaves. Only a group's first turn can be continued: another
        worker cannot repeat the turns before a later one."""
        prompt = list(token_ids)
        is_first, self._is_first = self._is_first, False
        if done and self.most_tokens(prompt[: len(prompt) - done]) <= done:
            return [not_sampled([], "length")]
        tokens_left = answer_tokens(prompt, self._context.context)
        vocabulary = self._context.vocabulary
        params = sampling_params(
            self._sampling, self._context.eos, tokens_left + done, self._seed, vocabulary
        )
        if done:
            params = rest_of(params, index, done)
        if stop:
            params = stopping_after(params, stop, self._added_tokens)
        try:
            if self._expired is not None and self._expired.is_set():
                raise PastDeadline("the deadline came before the group's next turn")
            begun = self._begun if is_first else None
            continues = begun is not None and (begun.prompt, len(begun.samples)) == (prompt, n)
            return await self._context.policy.generate(
                prompt,
                n,
                params,
                self._expired,
                self._leaving,
                begun.samples if begun is not None and continues else None,
            )
        except Interrupted as error:
            raise error if is_first else Interrupted(None) from error
        except PastDeadline:
            if not done:
                raise
            return [not_sampled([], DEADLINE)]

    async def message(
        self, token_ids: Sequence[int], tools: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """See `episodes.Sampler.message`. An answer that the parser cannot read becomes text.
        Raises VLLMUnavailable."""
        return await assistant_message(self._context, token_ids, STAND_IN, tools)


def task_seed(seed: int | None, task: int) -> int | None:
    """Return the seed of a task's first sample; vLLM adds the sample's index. None: no seed."""
    return None if seed is None else mixed(seed, task)


async def assistant_message(
    context: RunContext,
    token_ids: Sequence[int],
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]],
    variables: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the policy's answer to `messages` as an assistant's message, by vLLM's parsers if the
    run has any. `variables` of the chat template replace the run's.

    An answer that they cannot read becomes text: the policy wrote it, and it is trained like any
    other answer. Raises VLLMUnavailable.
    """
    ids = without_end(context, token_ids)
    served = context.config.served
    if ids and (served.parses_tools or served.parses_reasoning):
        with contextlib.suppress(RequestRefused):
            given = {**context.config.data.chat_template_kwargs, **(variables or {})}
            message = await context.policy.message(Parsed(ids, messages, tools, given))
            return {"content": None, **message}
    return {"role": "assistant", "content": text_of(context.tokenizer, ids)}


async def answer_message(
    context: RunContext, token_ids: Sequence[int], call: Call
) -> dict[str, Any]:
    """Return the answer to a call as an assistant's message. Without `parallel_tool_calls` only the
    first call of a tool is kept. Raises VLLMUnavailable."""
    message = await assistant_message(context, token_ids, call.messages, call.tools, call.variables)
    if not call.parallel_tool_calls and message.get("tool_calls"):
        message["tool_calls"] = message["tool_calls"][:1]
    return message


def constraint_of(call: Call) -> dict[str, Any]:
    """Return the required form of a call's answer as `rollout.vllm_plugin.generate` takes it."""
    structured = {**(call.structured or {})}
    if "tool_choice" in structured:
        structured |= {"tools": call.tools, "parallel_tool_calls": call.parallel_tool_calls}
    return structured


def without_end(context: RunContext, token_ids: Sequence[int]) -> list[int]:
    """Return an answer's tokens without its end-of-sequence token, if it has one."""
    ids = list(token_ids)
    return ids[:-1] if ids and ids[-1] in context.eos else ids
