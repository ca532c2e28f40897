"""ASGI middleware of vLLM's server that opens only the routes that Headrace uses.

`VLLM_SERVER_DEV_MODE`, which weight updates need, also opens routes that run any method of the
worker (`/collective_rpc`), or reset and profile the server.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from rollout.vllm_plugin.wire import CAPACITY, GENERATE, MESSAGE, STREAM, UNFINISHED

IN_USE = frozenset(
    {
        *("/health", "/metrics", "/v1/models", "/abort_requests"),
        *("/pause", "/resume", "/init_weight_transfer_engine", "/start_weight_update"),
        *("/update_weights", "/finish_weight_update"),
        # Only tests read these routes, which change nothing.
        *("/is_paused", "/is_sleeping", "/weight_info"),
    }
)

SLEEP = frozenset({"/sleep", "/wake_up"})
"""Open only if the server was started with sleep mode. Without it a sleep would never end."""

Message = dict[str, Any]


class OnlyRoutesInUse:
    """Answers the plugin's own routes, refuses other unknown paths with 404, and closes web
    sockets."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        from rollout.vllm_plugin.generate import capacity, generate, unfinished
        from rollout.vllm_plugin.parsed_answer import message
        from rollout.vllm_plugin.patches import pause_at_once
        from rollout.vllm_plugin.stream import stream

        pause_at_once()
        self.app = app
        self._plugin_routes = {
            GENERATE: generate,
            CAPACITY: capacity,
            UNFINISHED: unfinished,
            MESSAGE: message,
            STREAM: stream,
        }

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        """Answer one request, or handle the server's lifespan."""
        if scope["type"] == "http" and scope["path"] in self._plugin_routes:
            await self._plugin_routes[scope["path"]](scope, receive, send)
        elif scope["type"] == "lifespan" or (scope["type"] == "http" and _in_use(scope)):
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body"})
        else:
            await send({"type": "websocket.close"})


def _in_use(scope: Message) -> bool:
    path = scope["path"]
    return path in IN_USE or (path in SLEEP and scope["app"].state.args.enable_sleep_mode)


ONLY_ROUTES_IN_USE = f"{OnlyRoutesInUse.__module__}.{OnlyRoutesInUse.__name__}"
"""The middleware's name for vLLM's option `--middleware`."""
