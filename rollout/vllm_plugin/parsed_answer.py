"""A route for vLLM's parsers of answers: an answer's text, tool calls and reasoning.

vLLM's own route needs the id of a generate request, and options that open more routes. Imported
only in vLLM's API server.
"""

import json
from typing import Any

import msgspec
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.scale_out.token_in_token_out.protocol import (
    GenerateTokensChoice,
    GenerateTokensResponse,
)

from rollout.vllm_plugin.generate import Message, Receive, Send, body_of, error_body, respond
from rollout.vllm_plugin.wire import Parsed

_parsed = msgspec.msgpack.Decoder(Parsed)


async def message(scope: Message, receive: Receive, send: Send) -> None:
    """Answer with one answer as an assistant's message, by the server's tool and reasoning
    parsers."""
    body = await body_of(receive)
    if body is None:
        return
    try:
        parsed = await _message(scope["app"].state, _parsed.decode(body))
        status, content = 200, json.dumps(parsed).encode()
    # A parser reads the policy's text, and may raise anything.
    except Exception as error:
        status, content = 400, error_body(400, error)
    await respond(send, status, content)


async def _message(state: Any, parsed: Parsed) -> dict[str, Any]:
    request = ChatCompletionRequest(
        messages=parsed.messages,
        tools=parsed.tools or None,
        chat_template_kwargs=parsed.variables or None,
    )
    choice = GenerateTokensChoice(index=0, token_ids=parsed.token_ids, finish_reason="stop")
    response = GenerateTokensResponse(request_id="parse", choices=[choice])
    (made,) = await state.online_derenderer.derender_chat(response, request)
    dumped: dict[str, Any] = made.message.model_dump(exclude_none=True)
    return dumped
