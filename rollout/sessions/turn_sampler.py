"""Samples one turn of a session: from a call to the turn that `call_source` records.

Earlier turns are read from Redis, so any worker can sample the next one. The prompt is what was
sampled and added so far, followed by what the new messages add. With `history: template` it is what
the chat template makes of all messages.
"""

import time
from collections.abc import Sequence
from typing import Any

from rollout.text.answer_text import before_stop, text_of
from rollout.text.chat_rendering import UnusableParameter, added, opening, text_tokens, tokens
from rollout.vllm.client.policy_client import RequestRefused
from rollout.vllm.client.response import Sample, sampling_params
from rollout.work.group_assembly import oldest_tag
from rollout.work.prompt_sampler import answer_message, constraint_of, without_end
from rollout.work.run_context import RunContext
from services.contracts.config.episodes import Sessions
from services.contracts.config.vllm import TOOL_PARSER_OPTIONS
from services.contracts.sessions import (
    Call,
    SampledTurn,
    Turn,
    chat_histories,
    packed,
    text_histories,
    tokens_of,
)
from services.contracts.weights import parse_version_tag

NO_PARSER = (
    f"this run has no parser for the model's tool calls: submit it with {TOOL_PARSER_OPTIONS}"
)


class Refused(ValueError):
    """A call that cannot be answered. `code` is OpenAI's error code, `param` the parameter at
    fault."""

    def __init__(self, message: str, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.param = code, param


class TurnSampler:
    def __init__(self, context: RunContext) -> None:
        self._context = context
        served = context.config.served
        self._tools = served.parses_tools
        episode = context.config.rollout.episode
        # Without a chat template, earlier turns never change.
        template = isinstance(episode, Sessions) and episode.history == "template"
        self._renders = template and bool(context.tokenizer.chat_template)

    async def sample(self, call: Call, earlier: Sequence[Turn], seed: int | None) -> SampledTurn:
        """Sample the turn of `call`, which continues the conversation of the turns `earlier`.
        `seed` is the call's seed, if the run has one. Raises Refused, VLLMUnavailable,
        MalformedAnswer."""
        begins = tokens_of(earlier)
        try:
            kept, new = await self._prompt(call, earlier, begins)
        except UnusableParameter as error:
            raise Refused(f"{error.param}: {error}", param=error.param) from error
        except ValueError as error:
            at = "messages" if call.kind == "chat" else "prompt"
            raise Refused(f"{at}: {error}", param=at) from error
        prompt = [*begins[:kept], *new]
        first = len(earlier[0].prompt) if earlier else len(new)
        tokens_left = self._tokens_left(len(prompt), first)
        if earlier and (tokens_left < 1 or is_spent(earlier[-1])):
            return _spent(call, earlier, len(begins), len(prompt))
        params = self._params(call, tokens_left, len(prompt), seed)
        try:
            (sample,) = await self._context.policy.generate(prompt, 1, params)
            message, stop = await self._message(call, sample)
        except RequestRefused as error:
            # vLLM checks only the answer's format; the gateway has checked all other parameters.
            of = "tool_choice" if "tool_choice" in (call.structured or {}) else "response_format"
            raise Refused(str(error), param=of if call.structured else None) from error
        tags = [span.version for span in sample.spans]
        # Wait for proof that vLLM serves this version, since the turn is trained.
        await self._context.follower.until_proven(tags)
        live = self._context.follower.live
        oldest = oldest_tag(tags, live.tag if live else tags[0], self._context.follower.forks)
        mask = sample.sampling_mask
        turn = Turn(
            parent=call.path[-1] if call.path else -1,
            kept=kept,
            added=packed(new),
            token_ids=packed(sample.token_ids),
            logprobs=packed(sample.logprobs, "<f4"),
            versions=[(span.version, span.start, span.end) for span in sample.spans],
            sampling_mask=mask.pack() if mask is not None else None,
            finish_reason=sample.finish_reason,
            stop=stop,
            message=message,
            prompt_tokens=len(prompt),
            created=int(time.time()),
            side=call.side,
        )
        history = _history(call, message, sample.token_ids.tolist())
        return SampledTurn(turn, *history, parse_version_tag(oldest))

    async def _prompt(
        self, call: Call, earlier: Sequence[Turn], begins: list[int]
    ) -> tuple[int, list[int]]:
        """Return how many ids of the conversation so far (`begins`) the prompt keeps, and which ids
        come after them."""
        if call.kind == "chat" and earlier and self._renders:
            tokenizer = self._context.tokenizer
            whole = await opening(call.messages, call.tools, tokenizer, call.variables)
            pairs = enumerate(zip(begins, whole, strict=False))
            kept = next((at for at, (a, b) in pairs if a != b), min(len(begins), len(whole)))
            return kept, whole[kept:]
        return len(begins), await self._added(call, earlier)

    async def _added(self, call: Call, earlier: Sequence[Turn]) -> list[int]:
        context = self._context
        if call.kind == "completions":
            if isinstance(call.prompt, list):
                return call.prompt[call.new :]
            new_text = call.prompt[call.new :]
            if not earlier:
                return await text_tokens(new_text, context.tokenizer)
            return await tokens(new_text, context.tokenizer, add_special_tokens=False)
        if call.tools and not self._tools:
            raise UnusableParameter("tools", NO_PARSER)
        if not earlier:
            return await opening(call.messages, call.tools, context.tokenizer, call.variables)
        last = earlier[-1].sampled.tolist()
        about = call.messages, call.new, call.tools, last, context.eos
        return await added(*about, context.tokenizer, call.variables)

    def _tokens_left(self, prompt: int, first: int) -> int:
        """Return the most tokens of an answer to `prompt` tokens, in a conversation whose first
        prompt has `first` tokens."""
        max_tokens = self._context.config.sampling.max_tokens
        return min(max_tokens - (prompt - first), self._context.context - prompt)

    def _params(
        self, call: Call, tokens_left: int, prompt: int, seed: int | None
    ) -> dict[str, Any]:
        context, sampling = self._context, self._context.config.sampling
        if tokens_left < 1:
            raise Refused(
                # LangChain and LiteLLM recognise the error by these words.
                f"the prompt is too long: its {prompt} tokens leave no room for an answer in "
                f"{context.context} (rollout.vllm.max_model_len)",
                "context_length_exceeded",
                "messages" if call.kind == "chat" else "prompt",
            )
        chosen = seed if call.seed is None else call.seed
        params = sampling_params(sampling, context.eos, tokens_left, chosen, context.vocabulary)
        params["max_tokens"] = min(tokens_left, call.max_tokens or tokens_left)
        if call.stop:
            params |= {"stop": call.stop, "detokenize": True, "skip_special_tokens": False}
        if call.structured:
            params["structured_outputs"] = constraint_of(call)
        return params

    async def _message(self, call: Call, sample: Sample) -> tuple[dict[str, Any], str]:
        """Return the answer as the client gets it, and the `stop` text that ended it."""
        ids = sample.token_ids.tolist()
        if call.kind != "chat":
            text = text_of(self._context.tokenizer, without_end(self._context, ids))
            text, stop = before_stop(text, call.stop)
            return {"text": text}, stop
        message = await answer_message(self._context, ids, call)
        stop = ""
        if isinstance(message["content"], str):
            message["content"], stop = before_stop(message["content"], call.stop)
        return message, stop


def is_spent(turn: Turn) -> bool:
    """Whether `turn` is the empty answer of a conversation that had used up its tokens."""
    return turn.finish_reason == "length" and len(turn.sampled) == 0


def _spent(call: Call, earlier: Sequence[Turn], begins: int, prompt: int) -> SampledTurn:
    """Return an empty answer that ends with `length`.

    OpenAI's API ends an answer like this if its tokens are used up. The turn adds no token to the
    training data: the session keeps its length, and counts as truncated. A call that continues the
    turn gets the same answer, because the turn lacks the messages that did not fit.
    """
    message = {"text": ""} if call.kind != "chat" else {"role": "assistant", "content": ""}
    turn = Turn(
        parent=call.path[-1],
        kept=begins,
        added=b"",
        token_ids=b"",
        logprobs=b"",
        versions=[],
        sampling_mask=None,
        finish_reason="length",
        message=message,
        prompt_tokens=prompt,
        created=int(time.time()),
        side=call.side,
    )
    newest = next(turn.versions[-1][0] for turn in reversed(earlier) if turn.versions)
    return SampledTurn(turn, *_history(call, message, []), parse_version_tag(newest))


def _history(call: Call, message: dict[str, Any], ids: list[int]) -> tuple[str, int | None]:
    """Return the digest of the conversation after this turn, and its length for /completions."""
    if call.kind == "chat":
        return chat_histories(call.tools, [*call.messages, message])[-1], None
    whole: str | list[int] = (
        call.prompt + message["text"] if isinstance(call.prompt, str) else [*call.prompt, *ids]
    )
    return text_histories(whole, [len(whole)])[0], len(whole)
