"""Takes the reward service's log to the other logs.

The service reads what policies wrote, so it has no access to Redis: the gateway asks it every few
seconds. If there are several gateways, the one that holds a lease asks.
"""

import asyncio
import secrets

import httpx
from pydantic import ValidationError
from redis.exceptions import RedisError

from services.contracts.logs import RecentLines
from services.gateway.settings import GatewaySettings
from services.runtime.api_key import BadKeyFile, authorization, key_for_rewards
from services.store import Store

EVERY_SECONDS = 2.0
AWAY_SECONDS = 10.0
ASK_SECONDS = 5.0


async def keep_taking(store: Store, settings: GatewaySettings, http: httpx.AsyncClient) -> None:
    """Append the reward service's lines to the installation's log, until cancelled. A service that
    is away is asked less often."""
    holder = secrets.token_hex(8)
    while True:
        try:
            await take_once(store, settings, http, holder)
            pause = EVERY_SECONDS
        except (httpx.HTTPError, ValidationError, BadKeyFile, RedisError, OSError):
            pause = AWAY_SECONDS
        await asyncio.sleep(pause)


async def take_once(
    store: Store, settings: GatewaySettings, http: httpx.AsyncClient, holder: str
) -> None:
    """Append the lines that came since the last time, if `holder` has the lease or can get it."""
    place = await store.process_logs.reward_place(holder, 2 * AWAY_SECONDS)
    if place is None:
        return
    answer = await http.get(
        f"{settings.reward_url.rstrip('/')}/v1/logs",
        params={"start": place[0], "number": place[1]},
        headers=authorization(key_for_rewards(settings)),
        timeout=ASK_SECONDS,
    )
    answer.raise_for_status()
    recent = RecentLines.model_validate_json(answer.content)
    await store.process_logs.add(recent.lines)
    if (recent.start, recent.next) != place:
        await store.process_logs.keep_reward_place(recent.start, recent.next)
