"""ASGI middleware that compresses answers."""

import re

from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send


class Compressed:
    """Compresses the answers of paths that match `paths`, for clients that take gzip. Other answers
    pass as they are: streams arrive piece by piece, and archives would not become smaller. A
    compressed answer must not hold a secret beside text of the request, which its length would
    betray."""

    def __init__(self, app: ASGIApp, paths: re.Pattern[str]) -> None:
        self._app = app
        self._compressed = GZipMiddleware(app, minimum_size=4096, compresslevel=5)
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_large = scope["type"] == "http" and self._paths.fullmatch(scope["path"]) is not None
        await (self._compressed if is_large else self._app)(scope, receive, send)
