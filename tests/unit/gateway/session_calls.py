"""Chat calls of a session, as a client would send them."""

from typing import Any

from services.gateway.openai.requests import chat_call

SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
ASKED = [{"role": "user", "content": "2+2"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def chat(**body: Any) -> Any:
    return chat_call({"messages": ASKED, **body}, SAMPLING)
