"""Tell which runs agents play. The module imports no heavy package, so that commands start fast."""

from collections.abc import Mapping
from typing import Any


def agents_lease(config: Mapping[str, Any]) -> bool:
    """Whether agents lease the groups of a run with this validated config. Live traffic leases
    none."""
    episode = (config.get("rollout") or {}).get("episode") or {}
    source = (config.get("data") or {}).get("source")
    return episode.get("type") == "sessions" and source != "sessions"
