"""Answers to the gateway's own errors: datasets, Redis, the data volume."""

import errno
import shutil
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from services.datasets import DatasetError, UnsupportedFormat
from services.http import Problem, answer, unexpected
from services.http import install as install_shared
from services.runtime.logs import get_logger
from services.store import RedisFull, Unreadable
from services.store.unreadable import is_damage
from services.volume import REDIS_RESERVE

STORAGE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO}
NO_FILE_ERRORS = {errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ELOOP}
RETRY_AFTER = 2
"""Seconds a client should wait while Redis is away."""

log = get_logger(__name__)


def install(app: FastAPI) -> None:
    """Have every error of `app` answered as a problem document."""
    handlers = {
        DatasetError: _dataset,
        Unreadable: _unreadable,
        RedisError: _redis,
        OSError: _storage,
    }
    install_shared(app, handlers)


async def _dataset(request: Request, error: Exception) -> Response:
    unsupported = isinstance(error, UnsupportedFormat)
    status = HTTPStatus.UNSUPPORTED_MEDIA_TYPE if unsupported else HTTPStatus.UNPROCESSABLE_ENTITY
    return answer(request, status, str(error))


async def _unreadable(request: Request, error: Exception) -> Response:
    return answer(request, HTTPStatus.CONFLICT, str(error))


async def _redis(request: Request, error: Exception) -> Response:
    if is_damage(error):
        return await _unreadable(request, Unreadable("what Redis holds of it", str(error)))
    if isinstance(error, RedisFull):
        log.error("redis is full", path=request.url.path)
        full, wait = HTTPStatus.INSUFFICIENT_STORAGE, {"Retry-After": str(RETRY_AFTER)}
        return answer(request, full, str(error), headers=wait)
    away = isinstance(error, RedisConnectionError | RedisTimeoutError)
    detail = redis_away(request.app.state.deps.volume.root) if away else f"Redis refused: {error}"
    log.warning("redis failed", path=request.url.path, error=type(error).__name__)
    return answer(
        request,
        HTTPStatus.SERVICE_UNAVAILABLE,
        detail,
        headers={"Retry-After": str(RETRY_AFTER)},
    )


def away(root: Path) -> Problem:
    """Return the 503 of a middleware that needs Redis. `root` is the data volume."""
    headers = {"Retry-After": str(RETRY_AFTER), "Connection": "close"}
    return Problem(HTTPStatus.SERVICE_UNAVAILABLE, redis_away(root), headers=headers)


def redis_away(root: Path) -> str:
    """Return the sentence about a Redis that does not answer. Redis ends when it cannot append to
    its file, so the sentence names a full data volume `root`."""
    try:
        free = shutil.disk_usage(root).free
    except OSError:
        free = REDIS_RESERVE
    if free < REDIS_RESERVE:
        return (
            f"the disk is full: {free / (1 << 20):.1f} MiB are free on the data volume {root}. "
            "Redis, which usually keeps its files there, cannot be reached. Make room: "
            f"`headrace up` starts Redis again once {REDIS_RESERVE >> 20} MiB are free"
        )
    return "Redis cannot be reached: runs go on where they can; try again in a moment"


async def _storage(request: Request, error: Exception) -> Response:
    assert isinstance(error, OSError)
    if error.errno in NO_FILE_ERRORS and (name := _on_volume(request, error.filename)):
        log.error("a file of the data volume is gone", path=request.url.path, file=name)
        return answer(
            request,
            HTTPStatus.CONFLICT,
            f"{name} on the data volume is gone, or no file: restore it from a backup, or delete "
            "the dataset or run that it belongs to",
        )
    if error.errno not in STORAGE_ERRORS:
        return await unexpected(request, error)
    log.error("data volume failed", path=request.url.path, error=str(error))
    return answer(
        request,
        HTTPStatus.INSUFFICIENT_STORAGE,
        f"the data volume cannot be used: {error.strerror}",
    )


def _on_volume(request: Request, filename: Any) -> str | None:
    """Return the name of a file relative to the data volume, or None for another file."""
    try:
        data = request.app.state.deps.settings.data.absolute()
        return str(Path(filename).absolute().relative_to(data))
    except (AttributeError, TypeError, ValueError):
        return None
