"""One turn of a session: from a call to the answer that is recorded.

The turns before are read from Redis, so that any worker can play the next one. The prompt is what
was sampled and added so far, and what the new messages add.
"""

import time
from collections.abc import Sequence
from typing import Any

from rollout.sessions.rendering import added, opening
from rollout.vllm.client import RequestRefused
from rollout.vllm.response import Sample, sampling_params
from rollout.vllm.resume import mixed
from rollout.vllm_plugin.wire import Parsed
from rollout.work.assembly import oldest_tag
from rollout.work.group import RunContext, text_of
from services.contracts.config.vllm import spelled
from services.contracts.sessions import (
    Call,
    Standing,
    Turn,
    conversation_digest,
    digest_of,
    packed,
)
from services.contracts.weights import parse_version_tag

TOOL_PARSER, REASONING_PARSER = "tool-call-parser", "reasoning-parser"
NO_PARSER = (
    "tools: this run has no parser for the model's tool calls: submit it with rollout.vllm.extra "
    "{enable-auto-tool-choice: true, tool-call-parser: hermes}, or another of vLLM's parsers"
)


class Refused(ValueError):
    """A call that cannot be answered. `code` is OpenAI's word for it, `param` what is at fault."""

    def __init__(self, message: str, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.param = code, param


class TurnPlayer:
    """Plays the turns of one run on one server."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        parsers = {spelled(name) for name, value in context.config.served.extra.items() if value}
        self._tools = TOOL_PARSER in parsers
        self._parses = self._tools or REASONING_PARSER in parsers

    async def play(
        self, call: Call, before: Sequence[Turn], seed: int | None
    ) -> tuple[Turn, Standing, tuple[str, int]]:
        """The turn after `before`, where the conversation then stands, and (lineage, version) of
        the turn's oldest token. `seed`: the session's, if the run has one.

        Raises Refused, VLLMUnavailable, MalformedAnswer."""
        begins = [id for turn in before for id in (*turn.prompt, *turn.sampled.tolist())]
        try:
            new = self._added(call, before)
        except ValueError as error:
            at = "messages" if call.kind == "chat" else "prompt"
            raise Refused(f"{at}: {error}", param=at) from error
        prompt = [*begins, *new]
        first = len(before[0].prompt) if before else len(new)
        params = self._params(call, len(prompt), first, seed, len(before))
        try:
            (sample,) = await self._context.policy.generate(prompt, 1, params)
            message = await self._message(call, sample)
        except RequestRefused as error:
            raise Refused(str(error)) from error
        tags = [span.version for span in sample.spans]
        # Whether vLLM serves the version that it says: what is answered is trained.
        await self._context.follower.until_proven(tags)
        live = self._context.follower.live
        oldest = oldest_tag(tags, live.tag if live else tags[0], self._context.follower.forks)
        mask = sample.sampling_mask
        turn = Turn(
            added=packed(new),
            token_ids=packed(sample.token_ids),
            logprobs=packed(sample.logprobs, "<f4"),
            versions=[(span.version, span.start, span.end) for span in sample.spans],
            sampling_mask=mask.pack() if mask is not None else None,
            finish_reason=sample.finish_reason,
            message=message,
            prompt_tokens=len(prompt),
            created=int(time.time()),
        )
        return turn, _standing(call, message, sample), parse_version_tag(oldest)

    def _added(self, call: Call, before: Sequence[Turn]) -> list[int]:
        context = self._context
        if call.kind == "completions":
            if isinstance(call.prompt, list):
                return call.prompt[call.new :]
            rest = call.prompt[call.new :]
            special = {} if not before else {"add_special_tokens": False}
            return list(context.tokenizer(rest, **special)["input_ids"])
        if call.tools and not self._tools:
            raise Refused(NO_PARSER, param="tools")
        if not before:
            return opening(call.messages, call.tools, context.tokenizer)
        last = before[-1].sampled.tolist()
        return added(call.messages, call.new, call.tools, last, context.eos, context.tokenizer)

    def _params(
        self, call: Call, prompt: int, first: int, seed: int | None, turn: int
    ) -> dict[str, Any]:
        context, sampling = self._context, self._context.config.sampling
        left = min(sampling.max_tokens - (prompt - first), context.context - prompt)
        if left < 1:
            raise Refused(
                f"the conversation has {prompt} tokens, {prompt - first} of them after its first "
                f"prompt, and there is no room for an answer: a session may have "
                f"{sampling.max_tokens} (sampling.max_tokens) after its first prompt, and "
                f"{context.context} in all (rollout.vllm.max_model_len)",
                "context_length_exceeded",
                "messages" if call.kind == "chat" else "prompt",
            )
        chosen = call.seed if call.seed is not None else seed and mixed(seed, turn)
        params = sampling_params(sampling, context.eos, left, chosen, context.vocabulary)
        params["max_tokens"] = min(left, call.max_tokens or left)
        if call.stop:
            params |= {"stop": call.stop, "detokenize": True, "skip_special_tokens": False}
        return params

    async def _message(self, call: Call, sample: Sample) -> dict[str, Any]:
        """The answer as the client gets it."""
        ids = sample.token_ids.tolist()
        if ids and ids[-1] in self._context.eos:
            ids = ids[:-1]
        if call.kind == "chat" and self._parses and ids:
            parsed = Parsed(ids, call.messages, call.tools)
            message = await self._context.policy.message(parsed)
            if isinstance(message.get("content"), str):
                message["content"] = _before(message["content"], call.stop)
            return {"content": None, **message}
        text = _before(text_of(self._context.tokenizer, ids), call.stop)
        return {"role": "assistant", "content": text} if call.kind == "chat" else {"text": text}


def _before(text: str, stops: Sequence[str]) -> str:
    """`text` up to the first of `stops`."""
    ends = [at for stop in stops if (at := text.find(stop)) >= 0]
    return text[: min(ends)] if ends else text


def _standing(call: Call, message: dict[str, Any], sample: Sample) -> Standing:
    if call.kind == "chat":
        said = [*call.messages, message]
        return Standing(items=len(said), digest=conversation_digest(call.tools, said))
    whole: Any = (
        call.prompt + message["text"]
        if isinstance(call.prompt, str)
        else [*call.prompt, *sample.token_ids.tolist()]
    )
    return Standing(items=len(whole), digest=digest_of(whole))
