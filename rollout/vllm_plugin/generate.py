"""Routes in vLLM's server that ask the engine directly (`wire`).

vLLM's own route makes an object of every log-probability and writes it as JSON: 15 µs of CPU time a
token, instead of 0.3. Imported only in vLLM's API server.
"""

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
from vllm.exceptions import VLLMClientError
from vllm.inputs import tokens_input
from vllm.lora.request import LoRARequest
from vllm.outputs import CompletionOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

from rollout.vllm_plugin.tool_call_grammar import tool_call_grammar
from rollout.vllm_plugin.wire import (
    Capacity,
    Choice,
    GenerateAnswer,
    GenerateRequest,
    ids,
    logprobs,
)

FIRST_FOLDER = 1000
"""vLLM's number of the first folder. Lower numbers are those of the server's own adapters."""
_folders: dict[str, int] = {}
NO_GRAMMAR = "its schema does not compile, or allows nothing that the vocabulary can say"
FAILED = "the engine failed the request; its log says why"

decoder = msgspec.msgpack.Decoder(GenerateRequest)

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
T = TypeVar("T")


async def generate(scope: Message, receive: Receive, send: Send) -> None:
    """Answer one request over ASGI. The request is aborted if its client disconnects."""
    body = await body_of(receive)
    if body is None:
        return
    if answer := await unless_gone(receive, _answer(scope["app"].state, body)):
        await respond(send, *answer)


async def unless_gone(receive: Receive, answering: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of `answering`, or cancel it if the client disconnects first."""
    task = asyncio.create_task(answering)
    # The body is complete, so the next message is the client's disconnect.
    gone = asyncio.ensure_future(receive())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        gone.cancel()


async def body_of(receive: Receive) -> bytes | None:
    """Return a request's whole body; None if the client has disconnected."""
    body = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return bytes(body)


async def capacity(scope: Message, receive: Receive, send: Send) -> None:
    """Answer with the sequences and tokens that the server holds at once, as measured at its
    start."""
    config = scope["app"].state.engine_client.vllm_config
    held = Capacity(config.scheduler_config.max_num_seqs, config.cache_config.kv_cache_size_tokens)
    await respond(send, 200, msgspec.msgpack.encode(held))


async def unfinished(scope: Message, receive: Receive, send: Send) -> None:
    """Answer with the number of sequences that run or wait."""
    number = scope["app"].state.engine_client.output_processor.get_num_unfinished_requests()
    await respond(send, 200, str(number).encode())


async def respond(send: Send, status: int, content: bytes) -> None:
    headers = [(b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


async def _answer(state: Any, body: bytes) -> tuple[int, bytes]:
    try:
        request = decoder.decode(body)
        params = constrained(state, request.sampling)
        sampling = SamplingParams(
            **params, output_kind=RequestOutputKind.FINAL_ONLY, flat_logprobs=True
        )
        last = None
        async for output in outputs(state, request, sampling):
            last = output
    except (VLLMClientError, ValueError, TypeError) as error:
        return 400, error_body(400, error)
    except Exception as error:
        return 500, error_body(500, error.__cause__ or error)
    if last is None or any(output.finish_reason == "error" for output in last.outputs):
        if params.get("structured_outputs") is not None:
            # The grammar only fails here. With an answer of 500 the call would be retried forever.
            return 400, error_body(400, ValueError(NO_GRAMMAR))
        return 500, error_body(500, RuntimeError(FAILED))
    answer = GenerateAnswer([choice(output) for output in last.outputs])
    if last.prompt_logprobs is not None:
        flat: Any = last.prompt_logprobs
        # The first token has no value. Each other token's own value comes first.
        answer.prompt_logprobs = logprobs(np.asarray(flat.logprobs)[flat.start_indices[1:]])
    return 200, msgspec.msgpack.encode(answer)


def constrained(state: Any, sampling: dict[str, Any]) -> dict[str, Any]:
    """Return a request's parameters with its constraint in vLLM's form. Raises ValueError."""
    constraint = sampling.get("structured_outputs")
    if constraint is None:
        return sampling
    structured = (
        tool_call_grammar(state.online_derenderer, **constraint)
        if "tool_choice" in constraint
        else StructuredOutputsParams(**constraint)
    )
    return {**sampling, "structured_outputs": structured}


def adapter_of(state: Any, model: str) -> LoRARequest | None:
    """Return the adapter that a request names: the server's, or a folder in peft's layout. vLLM
    reads a folder at its first request, and keeps the adapters that were used last."""
    if not model.startswith("/"):
        served: LoRARequest | None = state.openai_serving_models.lora_requests.get(model)
        return served
    number = _folders.setdefault(model, FIRST_FOLDER + len(_folders))
    return LoRARequest(lora_name=model, lora_int_id=number, lora_path=model)


def outputs(state: Any, request: GenerateRequest, sampling: SamplingParams) -> AsyncIterator[Any]:
    """Return what the engine samples for `request`, as it says it."""
    sampled: AsyncIterator[Any] = state.engine_client.generate(
        tokens_input(request.token_ids, cache_salt=request.cache_salt),
        sampling,
        request.id,
        lora_request=adapter_of(state, request.model),
        priority=request.priority,
    )
    return sampled


def error_body(status: int, error: BaseException) -> bytes:
    text = str(error) or type(error).__name__
    return msgspec.json.encode({"error": {"message": text, "code": status}})


def choice(output: CompletionOutput) -> Choice:
    flat: Any = output.logprobs
    starts = np.asarray(flat.start_indices, np.int64)
    values = np.asarray(flat.logprobs, np.float64)
    made = Choice(
        index=output.index,
        finish_reason=str(output.finish_reason or "stop"),
        token_ids=ids(output.token_ids),
        logprobs=logprobs(values[starts]),
        versions=[(str(v.version), v.start, v.end) for v in output.weight_versions or []],
    )
    if output.sampling_mask is not None:
        mask: Sequence[Sequence[int]] = output.sampling_mask.token_ids
        made.counts = ids([len(each) for each in mask])
        made.candidates = ids([token for each in mask for token in each])
    elif len(values) > len(starts):
        # The sampled token comes first, and again among the likeliest.
        is_candidate = np.ones(len(values), np.bool_)
        is_candidate[starts] = False
        made.counts = ids(np.asarray(flat.end_indices) - starts - 1)
        made.candidates = ids(np.asarray(flat.token_ids)[is_candidate])
        made.candidate_logprobs = logprobs(values[is_candidate])
    if output.routed_experts is not None:
        file = io.BytesIO()
        np.save(file, output.routed_experts, allow_pickle=False)
        made.experts = file.getbuffer()
    return made
