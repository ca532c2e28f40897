"""Whether the hub has a model that a submission names.

The learner would find out after the run has waited for its turn. A name is refused only if the hub
answers that the name is unknown. A name passes while the hub is away.
"""

import os
from collections.abc import Mapping
from http import HTTPStatus

import httpx

from services.models.hub_cache import hub_cache_entry
from services.runtime.logs import get_logger

log = get_logger(__name__)

ENDPOINT = "https://huggingface.co"
SECONDS = 5.0
"""How long a submission waits for the hub."""
UNKNOWN = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND)
"""The hub's answers for a name that does not exist, and for a repository that is closed."""
TRUE = ("1", "on", "yes", "true")


async def why_not_on_hub(
    http: httpx.AsyncClient, name: str, environment: Mapping[str, str] = os.environ
) -> str:
    """Why a run cannot load the hub's model `name` (org/name); empty if it can, or if nobody
    knows. `environment`: the variables of the hub's own library."""
    if any(hub_cache_entry(name, environment).glob("snapshots/*/config.json")):
        return ""
    if environment.get("HF_HUB_OFFLINE", "").lower() in TRUE:
        return (
            f"{name}: HF_HUB_OFFLINE is set, and the hub's cache on the gateway's host does not "
            "have this model: download it there first, name a folder, or unset HF_HUB_OFFLINE for "
            "the gateway"
        )
    endpoint = environment.get("HF_ENDPOINT", ENDPOINT).rstrip("/")
    token = environment.get("HF_TOKEN", "").strip()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        response = await http.get(
            f"{endpoint}/api/models/{name}",
            headers=headers,
            timeout=SECONDS,
            follow_redirects=True,  # a model that was renamed
        )
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        log.info("the hub was not asked for a model", name=name, reason=type(error).__name__)
        return ""
    if response.status_code not in UNKNOWN:
        return ""
    return (
        f"the hub has no model {name!r}, or keeps it closed: check the spelling, give the gateway "
        "and the learner HF_TOKEN for a closed model, or name a folder in Hugging Face layout"
    )
