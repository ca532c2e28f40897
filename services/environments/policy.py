"""The policy in one session, over the OpenAI API."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import httpx

from services.environments.playing import EnvironmentFailed, Message

PATIENCE = 60.0
"""Seconds for which a call is retried while the gateway or Redis is away. A retry gets the recorded
answer."""
PAUSE = 1.0


class ContextFull(Exception):
    """The context length is used up."""


class Policy:
    """Answers messages with the policy."""

    def __init__(self, http: httpx.AsyncClient, session: Mapping[str, Any]) -> None:
        self._http = http
        self._url = f"{session['base_url'].rstrip('/')}/chat/completions"
        self._headers = {"Authorization": f"Bearer {session['key']}"}

    async def answer(self, messages: list[Message], tools: list[dict[str, Any]]) -> Message:
        """Return the next message of the assistant. Raises ContextFull, EnvironmentFailed."""
        body = {"model": "policy", "messages": messages} | ({"tools": tools} if tools else {})
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                response = await self._http.post(
                    self._url, json=body, headers=self._headers, timeout=None
                )
                problem = "" if response.is_success else _problem(response)
                again = response.status_code in (502, 503, 504)
            except httpx.TransportError as error:
                problem, again = f"the gateway is away: {str(error) or type(error).__name__}", True
            if not problem:
                answer = response.json()
                choice = answer["choices"][0]
                if choice["finish_reason"] == "length" and not answer["usage"]["completion_tokens"]:
                    raise ContextFull("the conversation has used up its tokens")
                message: Message = choice["message"]
                return message
            if not again or time.monotonic() > deadline:
                raise EnvironmentFailed(problem)
            await asyncio.sleep(PAUSE)


def _problem(response: httpx.Response) -> str:
    """Describe an error response. Raises ContextFull."""
    try:
        error = response.json()["error"]
        code, message = error.get("code"), str(error["message"])
    except (ValueError, KeyError, TypeError, AttributeError):
        code, message = None, response.text[:300]
    if code == "context_length_exceeded":
        raise ContextFull(message)
    return f"the session's call got {response.status_code}: {message}"
