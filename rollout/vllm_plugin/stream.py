"""A route that sends one sample as it grows, in lines of JSON. Imported only in vLLM's API server.

vLLM decodes the text: it sends whole characters, and holds back text that may begin a stop text.
"""

from typing import Any

import msgspec
from vllm.exceptions import VLLMClientError
from vllm.sampling_params import RequestOutputKind, SamplingParams

from rollout.vllm_plugin.generate import (
    FAILED,
    NO_GRAMMAR,
    Message,
    Receive,
    Send,
    body_of,
    constrained,
    decoder,
    error_body,
    outputs,
    respond,
    unless_gone,
)
from rollout.vllm_plugin.wire import Delta, token_scores

PROMPT_TOKENS = 256
"""Tokens of a prompt whose log-probabilities stand in one line: a client limits lines."""


async def stream(scope: Message, receive: Receive, send: Send) -> None:
    """Answer one request over ASGI. The request is aborted if its client disconnects."""
    body = await body_of(receive)
    if body is None:
        return
    await unless_gone(receive, _sample(scope["app"].state, body, send))


async def _sample(state: Any, body: bytes, send: Send) -> None:
    begun = False

    async def say(delta: Delta) -> None:
        nonlocal begun
        if not begun:
            begun = True
            await send({"type": "http.response.start", "status": 200, "headers": []})
        line = msgspec.json.encode(delta) + b"\n"
        await send({"type": "http.response.body", "body": line, "more_body": True})

    try:
        request = decoder.decode(body)
        params = constrained(state, request.sampling)
        sampling = SamplingParams(**params, output_kind=RequestOutputKind.DELTA)
        async for output in outputs(state, request, sampling):
            places = output.prompt_logprobs or ()
            known = token_scores(request.token_ids, places, sampling.prompt_logprobs)
            for start in range(0, len(known), PROMPT_TOKENS):
                await say(Delta(prompt_scores=known[start : start + PROMPT_TOKENS]))
            sample = output.outputs[0]
            spans = [(str(v.version), v.start, v.end) for v in sample.weight_versions or []]
            reason = sample.finish_reason and str(sample.finish_reason)
            # A number is the id of a stop token.
            stop = sample.stop_reason if isinstance(sample.stop_reason, str) else ""
            delta = Delta(sample.text, list(sample.token_ids), reason, spans, stop)
            delta.scores = token_scores(delta.token_ids, sample.logprobs or (), sampling.logprobs)
            if reason == "error":
                # The grammar only fails here, and would fail again.
                is_constrained = params.get("structured_outputs") is not None
                failed = NO_GRAMMAR if is_constrained else FAILED
                delta = Delta(error=failed, refused=is_constrained)
            await say(delta)
    except Exception as error:
        refused = isinstance(error, VLLMClientError | ValueError | TypeError)
        status, cause = (400, error) if refused else (500, error.__cause__ or error)
        if not begun:
            await respond(send, status, error_body(status, cause))
            return
        await say(Delta(error=str(cause)))
    await send({"type": "http.response.body"})
