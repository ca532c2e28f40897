"""Asks the reward service on behalf of the gateway's routes."""

from http import HTTPStatus
from typing import Any

import httpx
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_fixed

from services.gateway.dependencies import Dependencies
from services.http import Problem
from services.runtime.api_key import authorization, key_for_rewards

SCORE_SECONDS = 90.0
"""For one answer to be scored."""
RELOAD_SECONDS = 6.0
"""How long a reward service that refuses connections is asked again: it may be reloading."""
AWAY = "The reward service is away, or starts again"


async def ask(deps: Dependencies, method: str, path: str, seconds: float, body: Any = None) -> Any:
    """Return the reward service's answer. Raises its Problem, or 503 if it is away."""
    try:
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(httpx.ConnectError),
            stop=stop_after_delay(RELOAD_SECONDS),
            wait=wait_fixed(0.3),
            reraise=True,
        ):
            with attempt:
                response = await deps.http.request(
                    method,
                    f"{deps.settings.reward_url}{path}",
                    json=body,
                    headers=authorization(key_for_rewards(deps.settings)),
                    timeout=httpx.Timeout(seconds, connect=3),
                )
    except httpx.HTTPError as error:
        raise _away(deps, type(error).__name__) from None
    if response.status_code in (
        HTTPStatus.FORBIDDEN,
        HTTPStatus.NOT_FOUND,
        HTTPStatus.UNPROCESSABLE_ENTITY,
    ):
        raise _problem_of(response)
    if response.is_error:
        raise _away(deps, f"{response.status_code} {response.reason_phrase}")
    try:
        return response.json() if response.content else None
    except ValueError:
        raise _away(deps, "no JSON") from None


def _problem_of(response: httpx.Response) -> Problem:
    """Return the reward service's problem as the gateway's own."""
    try:
        document = response.json()
        detail = str(document["detail"])
        problems = [(item["path"], item["message"]) for item in document.get("problems") or ()]
    except (ValueError, KeyError, TypeError):
        detail, problems = f"the reward service answered {response.status_code}", []
    return Problem(response.status_code, detail, problems)


def _away(deps: Dependencies, reason: str) -> Problem:
    return Problem(
        HTTPStatus.SERVICE_UNAVAILABLE,
        f"the reward service at {deps.settings.reward_url} gave no answer ({reason}): it is away, "
        "or starts again; `headrace logs reward` has its log",
        headers={"Retry-After": "2"},
    )
