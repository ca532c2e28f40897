"""A route that sends one sample as it grows, in lines of JSON. Imported only in vLLM's API server.

vLLM decodes the text: it sends whole characters, and holds back text that may begin a stop text.
"""

from typing import Any

import msgspec
from vllm.exceptions import VLLMClientError
from vllm.inputs import tokens_input
from vllm.sampling_params import RequestOutputKind, SamplingParams

from rollout.vllm_plugin.generate import (
    Message,
    Receive,
    Send,
    body_of,
    error_body,
    respond,
    unless_gone,
)
from rollout.vllm_plugin.wire import Delta, GenerateRequest

_request = msgspec.msgpack.Decoder(GenerateRequest)


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
        request = _request.decode(body)
        sampling = SamplingParams(**request.sampling, output_kind=RequestOutputKind.DELTA)
        async for output in state.engine_client.generate(
            tokens_input(request.token_ids, cache_salt=request.cache_salt),
            sampling,
            request.id,
            lora_request=state.openai_serving_models.lora_requests.get(request.model),
            priority=request.priority,
        ):
            sample = output.outputs[0]
            spans = [(str(v.version), v.start, v.end) for v in sample.weight_versions or []]
            reason = sample.finish_reason and str(sample.finish_reason)
            await say(Delta(sample.text, list(sample.token_ids), reason, spans))
    except (VLLMClientError, ValueError, TypeError) as error:
        if not begun:
            await respond(send, 400, error_body(400, error))
            return
        await say(Delta(error=str(error)))
    except Exception as error:
        if not begun:
            await respond(send, 500, error_body(500, error.__cause__ or error))
            return
        await say(Delta(error=str(error.__cause__ or error)))
    await send({"type": "http.response.body"})
