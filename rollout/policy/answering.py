"""Answers one call of the policy as an endpoint, in pieces.

Training comes first: for PATIENCE_SECONDS vLLM starts the call only after all waiting training
requests. Then the call waits in line with them, so that a run that keeps vLLM full does not starve
it.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, nullcontext
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import msgspec

from rollout.aio import together
from rollout.text.answer_text import before_stop
from rollout.text.chat_rendering import UnusableParameter, opening, text_tokens
from rollout.vllm.client.connection import VLLMUnavailable
from rollout.vllm.client.policy_client import RequestRefused
from rollout.vllm.client.response import SERVED_NAME
from rollout.vllm.client.resume import ABORTED, rest_of
from rollout.vllm_plugin.wire import Delta
from rollout.work.prompt_sampler import answer_message, constraint_of
from rollout.work.run_context import RunContext
from services.contracts.config.vllm import TOOL_PARSER_OPTIONS
from services.contracts.policy_calls import Failure, Piece, PolicyCall, TokenScore
from services.contracts.rows.rendering import plain_text
from services.contracts.rows.template_limits import noted
from services.contracts.sessions import Call, text_of
from services.contracts.weights import parse_version_tag

PATIENCE_SECONDS = 10.0
AFTER_TRAINING, AS_TRAINING = 1, 0
"""Priorities in vLLM's queue."""
GREEDY_SCORES = (
    "this run samples with top_k, and its vLLM gives a greedy choice the log-probability 0: ask "
    "for a temperature above 0, or leave logprobs out"
)
Say = Callable[[Piece], None]


class NotAnswered(ValueError):
    """A call that is not answered, or whose answer breaks off."""

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.failure = Failure(status=status, message=message, param=param, code=code)


@dataclass(frozen=True)
class AskedChoice:
    """One answer to one prompt of a call."""

    number: int
    prompt: list[int]
    params: dict[str, Any]
    is_first: bool
    """Whether it is the first answer to its prompt."""


class Answering:
    def __init__(self, context: RunContext) -> None:
        self._context = context
        served = context.config.served
        self._tools, self._reasoning = served.parses_tools, served.parses_reasoning

    async def answer(self, asked: PolicyCall, say: Say) -> None:
        """Send the answer's pieces to `say`, ending with the last one."""
        try:
            await self._answer(asked, say)
        except NotAnswered as error:
            say(Piece(failure=error.failure))
        except RequestRefused as error:
            say(Piece(failure=Failure(status=HTTPStatus.BAD_REQUEST, message=str(error))))
        except VLLMUnavailable as error:
            away = f"the worker's vLLM does not answer: {error}"
            say(Piece(failure=Failure(status=HTTPStatus.SERVICE_UNAVAILABLE, message=away)))

    async def _answer(self, asked: PolicyCall, say: Say) -> None:
        call = asked.call
        say(Piece(version=await self._served()))
        self._check_live(asked)
        param = "messages" if call.kind == "chat" else "prompt"
        note = self._context.template_note
        try:
            with nullcontext() if note is None else noted(note):
                prompts = [await self._prompt(each) for each in _calls(asked)]
        except ValueError as error:
            param = error.param if isinstance(error, UnusableParameter) else param
            raise NotAnswered(HTTPStatus.BAD_REQUEST, f"{param}: {error}", param) from error
        if asked.count:
            say(Piece(finish_reason="stop", prompt_tokens=len(prompts[0])))
            return
        of_prompts = [(each, self._params(asked, len(each), param)) for each in prompts]
        choices = [
            AskedChoice(at * asked.n + answer, prompt, _for_answer(params, answer), answer == 0)
            for at, (prompt, params) in enumerate(of_prompts)
            for answer in range(asked.n)
        ]
        waiting = len(choices)

        async def answered(choice: AskedChoice) -> None:
            nonlocal waiting
            last = await self._choice(asked, choice, say)
            waiting -= 1
            last.more = waiting > 0
            say(last)

        await together(answered(choice) for choice in choices)

    async def _choice(self, asked: PolicyCall, choice: "AskedChoice", say: Say) -> Piece:
        """Send an answer's pieces to `say` but the last one, which is returned."""
        call, prompt, params = asked.call, choice.prompt, choice.params
        # Parsers need the whole answer.
        whole = call.kind == "chat" and bool(call.tools or self._reasoning)
        if asked.echo:
            say(Piece(choice=choice.number, text=self._text_of(asked, choice)))
        sampled: list[int] = []
        reason, stop = ABORTED, ""
        while reason == ABORTED and len(sampled) < params["max_tokens"]:
            remaining = _without_prompt(rest_of(params, 0, len(sampled))) if sampled else params
            prompt_scores: list[TokenScore] = []
            async with aclosing(self._deltas([*prompt, *sampled], remaining)) as deltas:
                async for delta in deltas:
                    self._check_live(asked)
                    # vLLM reports the versions of its own weights, and not of an adapter's folder.
                    for tag, _, _ in () if self._context.adapter else delta.versions:
                        self._check(asked, tag)
                    prompt_scores += delta.prompt_scores
                    if len(prompt_scores) == len(prompt):
                        prompt_scores[0].text = self._decoded(prompt[:1])
                        say(Piece(choice=choice.number, scores=prompt_scores))
                        prompt_scores = []
                    sampled += delta.token_ids
                    reason = delta.finish_reason or reason
                    stop = delta.stop or stop
                    piece = Piece(choice=choice.number, scores=delta.scores)
                    if not whole:
                        piece.text = delta.text
                    if piece.visible and not asked.answerless:
                        say(piece)
        last = Piece(choice=choice.number, stop=stop)
        last.finish_reason = "length" if reason == ABORTED or asked.answerless else reason
        last.prompt_tokens = len(prompt) if choice.is_first else 0
        last.sampled_tokens = 0 if asked.answerless else len(sampled)
        if whole:
            last.message = await answer_message(self._context, sampled, call)
            if isinstance(last.message["content"], str):
                last.message["content"], _ = before_stop(last.message["content"], call.stop)
        return last

    def _text_of(self, asked: PolicyCall, choice: "AskedChoice") -> str:
        """Return the text of a choice's prompt, as the client sent it."""
        sent = _calls(asked)[choice.number // asked.n].prompt
        return sent if isinstance(sent, str) else self._decoded(sent)

    def _decoded(self, token_ids: list[int]) -> str:
        return self._context.tokenizer.decode(token_ids, skip_special_tokens=False)

    async def _served(self) -> int:
        """Return the version that vLLM was proven to serve. Raises NotAnswered."""
        follower = self._context.follower
        if follower.live is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await follower.until_proven([follower.live.tag])
        if follower.live is None:
            raise NotAnswered(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"worker {self._context.worker} is loading weights: ask again in a moment",
            )
        return follower.live.version

    def _check_live(self, asked: PolicyCall) -> None:
        if live := self._context.follower.live:
            self._check(asked, live.tag)

    def _check(self, asked: PolicyCall, tag: str) -> None:
        version = parse_version_tag(tag)[1]
        if asked.version is not None and version != asked.version:
            raise NotAnswered(
                HTTPStatus.NOT_FOUND,
                f"the worker has gone on from version {asked.version} to {version} before the "
                "answer was whole: ask for the run's newest version (RUN@latest), which may change "
                "within an answer",
                "model",
                "version_gone",
            )

    async def _prompt(self, call: Call) -> list[int]:
        context = self._context
        if call.kind == "completions":
            if isinstance(call.prompt, list):
                return call.prompt
            return await text_tokens(call.prompt, context.tokenizer)
        if call.tools and not self._tools:
            raise UnusableParameter(
                "tools",
                "this run has no parser for the model's tool calls: leave `tools` out, or submit a "
                f"run with {TOOL_PARSER_OPTIONS}",
            )
        if context.config.data.chat_template == "none" and not call.variables:
            plain = [{**message, "content": text_of(message)} for message in call.messages]
            return await text_tokens(plain_text(plain), context.tokenizer)
        return await opening(call.messages, call.tools, context.tokenizer, call.variables)

    def _params(self, asked: PolicyCall, prompt: int, param: str) -> dict[str, Any]:
        context, sampling, call = self._context, self._context.config.sampling, asked.call
        tokens_left = context.context - prompt
        if tokens_left < 1:
            raise NotAnswered(
                HTTPStatus.BAD_REQUEST,
                f"{param}: the prompt is too long: {prompt} tokens leave no room for an answer: "
                f"both may have {context.context} (rollout.vllm.max_model_len)",
                param,
                "context_length_exceeded",
            )
        params: dict[str, Any] = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            **asked.sampling,
            "max_tokens": 1
            if asked.answerless
            else min(tokens_left, asked.max_tokens, call.max_tokens or sampling.max_tokens),
            "stop_token_ids": sorted({*context.eos, *sampling.stop_token_ids}),
            "detokenize": True,
            "logprobs": asked.scores,
        }
        if asked.echo and asked.scores is not None:
            params["prompt_logprobs"] = asked.scores
        if params["temperature"] == 0 and sampling.cuts and context.vocabulary is None:
            # A server that returns sampling masks refuses a temperature of 0.
            if asked.scores is not None and not asked.echo:
                raise NotAnswered(HTTPStatus.BAD_REQUEST, f"logprobs: {GREEDY_SCORES}", "logprobs")
            params |= {"temperature": 1.0, "top_k": 1, "top_p": 1.0}
        if call.structured is not None:
            params["structured_outputs"] = constraint_of(call)
        if call.stop:
            params["stop"] = call.stop
        if call.seed is not None:
            params["seed"] = call.seed
        return params

    async def _deltas(
        self, prompt: list[int], params: dict[str, Any]
    ) -> AsyncGenerator[Delta, None]:
        """Yield what vLLM samples. Raises RequestRefused, VLLMUnavailable."""
        policy, model = self._context.policy, self._context.adapter or SERVED_NAME
        deltas = policy.stream(prompt, params, AFTER_TRAINING, model)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                first = await anext(deltas)
        except TimeoutError:
            await deltas.aclose()
            deltas = policy.stream(prompt, params, AS_TRAINING, model)
            first = await anext(deltas)
        async with aclosing(deltas):
            yield first
            async for delta in deltas:
                yield delta


def _calls(asked: PolicyCall) -> list[Call]:
    """Return a call for each prompt."""
    call = asked.call
    return [msgspec.structs.replace(call, prompt=prompt) for prompt in asked.prompts] or [call]


def _for_answer(params: dict[str, Any], answer: int) -> dict[str, Any]:
    """Return the sampling parameters of one of several answers: with the same seed all would be the
    same."""
    return {**params, "seed": params["seed"] + answer} if "seed" in params else params


def _without_prompt(params: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if name != "prompt_logprobs"}
