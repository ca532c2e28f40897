"""Whether the hub has a model that a submission names.

The learner would find out after the run has waited for its turn. A name is refused only if the hub
answers that the name is unknown. A name passes while the hub is away.
"""

import os
from collections.abc import Mapping
from http import HTTPStatus
from typing import NamedTuple

import httpx

from headrace.hub_cache import hub_cache_entry
from services.runtime.logs import get_logger

log = get_logger(__name__)

ENDPOINT = "https://huggingface.co"
SECONDS = 5.0
"""How long a submission waits for the hub."""
UNKNOWN = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND)
"""The hub's answers for a name that does not exist, and for a repository that is closed."""
TRUE = ("1", "on", "yes", "true")


class HubVerdict(NamedTuple):
    """Whether a run can load a model of the hub. Both texts are empty if it can."""

    refusal: str = ""
    warning: str = ""
    """The hub could not be asked."""


async def asked_of_hub(
    http: httpx.AsyncClient, name: str, environment: Mapping[str, str] = os.environ
) -> HubVerdict:
    """Ask the hub whether a run can load its model `name` (org/name). `environment`: the variables
    of the hub's own library."""
    if any(hub_cache_entry(name, environment).glob("snapshots/*/config.json")):
        return HubVerdict()
    if environment.get("HF_HUB_OFFLINE", "").lower() in TRUE:
        return HubVerdict(
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
        return HubVerdict(warning=_not_asked(name, type(error).__name__))
    if response.is_success:
        return HubVerdict()
    if response.status_code not in UNKNOWN:
        return HubVerdict(warning=_not_asked(name, f"it answers {response.status_code}"))
    return HubVerdict(
        f"the hub has no model {name!r}, or keeps it closed: check the spelling, give the gateway "
        "and the learner HF_TOKEN for a closed model, or name a folder in Hugging Face layout"
    )


def _not_asked(name: str, reason: str) -> str:
    return (
        f"the gateway's host has no folder {name}, so {name} is taken for a name on the hub, which "
        f"could not be asked for it ({reason}): the run fails if the hub has no such model"
    )
