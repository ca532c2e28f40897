"""Tokens of the stand-in: sampled one by one, streamed, parsed and scored."""

import asyncio
import io
import json
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from rollout.vllm_plugin.wire import LOWEST, Choice, Delta, ids, logprobs
from services.contracts.canary import sequences, unpacked
from tests.scripted_vllm.script import Asked, Script, State

STEP_SECONDS = 0.01


def routed_experts(tokens: list[int], layers: int) -> memoryview:
    """Routing as vLLM returns it: token t goes to the experts t and t + 1 + layer (of 256). The
    last one has been through no layer yet."""
    layer = np.arange(1, layers + 1)
    ids = np.array(tokens[:-1])[:, None] + np.zeros(layers, int)
    experts = np.stack([ids, ids + layer], -1).astype(np.uint8)
    file = io.BytesIO()
    np.save(file, experts)
    return file.getbuffer()


async def one_sample(
    state: State,
    asked: Asked,
    params: dict[str, Any],
    index: int,
    prompt: list[int],
    tell: Callable[[list[int]], None] = lambda tokens: None,
) -> Choice:
    """Sample token by token, noting under which version each was; `tell` hears of all tokens so
    far after each step."""
    room = state.context - len(prompt)
    script = state.script
    limit = min(params.get("max_tokens", 16), room)
    stops = set(params.get("stop_token_ids", []))
    texts = params.get("stop", [])
    script_number = state.answered
    state.answered += 1
    reply = script.replies[script_number % len(script.replies)] if script.replies else None
    seed = params.get("seed")
    source = random.Random(seed + index if seed is not None else None)
    tokens: list[int] = []
    spans: list[tuple[str, int, int]] = []
    finish = "length"
    per_step = max(1, round(script.tokens_per_second * STEP_SECONDS))
    while len(tokens) < limit and finish == "length":
        await asyncio.sleep(max(STEP_SECONDS, 1 / script.tokens_per_second))
        if asked.aborted:
            finish = "abort"
            break
        if not state.running:
            continue
        if hangs(state):
            continue
        for _ in range(min(per_step, limit - len(tokens))):
            token = reply[len(tokens)] if reply else source.randrange(script.vocabulary)
            start = len(tokens)
            if spans and spans[-1][0] == state.version:
                start = spans.pop()[1]
            spans.append((state.version, start, len(tokens) + 1))
            tokens.append(token)
            state.tokens += 1
            said = any(text in decoded(state, tokens) for text in texts)
            if token in stops or said or (reply and len(tokens) == len(reply)):
                finish = "stop"
                break
        tell(tokens)
    made = Choice(
        index=index,
        finish_reason=finish,
        token_ids=ids(tokens),
        logprobs=logprobs([-math.log(kept_of(script, params))] * len(tokens)),
        versions=spans,
    )
    if asked_for := params.get("logprobs", 0):
        found = [one for token in tokens for one in candidates(script, params, token)]
        made.counts = ids([asked_for] * len(tokens))
        made.candidates = ids([token for token, _ in found])
        made.candidate_logprobs = logprobs([logprob for _, logprob in found])
    if state.layers:
        made.experts = routed_experts(prompt + tokens, state.layers)
    return made


def hangs(state: State) -> bool:
    """Whether nothing is sampled at the moment."""
    after, until = state.script.hang_after, state.script.hang_until
    return after is not None and state.tokens >= after and not (until and Path(until).exists())


def kept_of(script: Script, params: dict[str, Any]) -> int:
    """From how many tokens each is chosen."""
    return min(params.get("top_k") or script.vocabulary, script.vocabulary)


def candidates(script: Script, params: dict[str, Any], token: int) -> list[tuple[int, float]]:
    """Return the requested number of candidates. The token and its successors are equally likely;
    tokens that `top_k` cuts off are impossible."""
    kept, asked = kept_of(script, params), params["logprobs"]
    return [
        ((token + i) % max(asked, script.vocabulary), -math.log(kept) if i < kept else LOWEST)
        for i in range(asked)
    ]


def scores(state: State, prompt: list[int]) -> bytes:
    """Log-probabilities of the prompt but its first token."""
    if state.canary is None:
        return b""
    canary, start, found = state.canary, 0, b""
    for tokens in sequences(canary.vocabulary, canary.longest):
        values = unpacked(canary.logprobs)[start : (start := start + len(tokens) - 1)]
        values = values + state.script.score_error
        if tokens == prompt:
            found = logprobs(values)
    if found:
        return state.prefixes.setdefault(tuple(prompt), found)
    return found


async def grown(
    state: State, asked: Asked, params: dict[str, Any], prompt: list[int]
) -> AsyncIterator[bytes]:
    """One sample in lines of JSON, as it grows."""
    steps: asyncio.Queue[int] = asyncio.Queue()
    sampled: list[int] = []

    def tell(tokens: list[int]) -> None:
        sampled[:] = tokens
        steps.put_nowait(len(tokens))

    sample = asyncio.create_task(counted(state, one_sample(state, asked, params, 0, prompt, tell)))
    sample.add_done_callback(lambda _: steps.put_nowait(0))
    told, text = 0, ""
    try:
        while await steps.get():
            whole = decoded(state, sampled)
            delta = Delta(whole.removeprefix(text), sampled[told:])
            told, text = len(sampled), whole
            yield msgspec.json.encode(delta) + b"\n"
        made = await sample
        end = Delta(finish_reason=made.finish_reason, versions=made.versions)
        yield msgspec.json.encode(end) + b"\n"
    finally:
        sample.cancel()


def decoded(state: State, tokens: list[int]) -> str:
    """The text of `tokens`, special ones included."""
    assert state.tokenizer is not None, f"{state.model} has no tokenizer.json"
    return str(state.tokenizer.decode(tokens, skip_special_tokens=False))


def message_of(text: str) -> dict[str, Any]:
    """An answer as vLLM's parser `hermes` reads it."""
    content, *rest = text.split("<tool_call>")
    calls = [json.loads(one.partition("</tool_call>")[0]) for one in rest]
    return {
        "role": "assistant",
        "content": content or None,
        "tool_calls": [
            {
                "id": f"call-{number}",
                "type": "function",
                "function": {"name": one["name"], "arguments": json.dumps(one["arguments"])},
            }
            for number, one in enumerate(calls)
        ],
    }


async def counted(state: State, sample: Awaitable[Choice]) -> Choice:
    """The sample, which is unfinished until it is there."""
    state.unfinished += 1
    try:
        return await sample
    finally:
        state.unfinished -= 1
