"""Tell which runs agents play. The module imports no heavy package, so that commands start fast."""

from collections.abc import Mapping
from typing import Any

from services.contracts.config_keys import value_at


def agents_lease(config: Mapping[str, Any]) -> bool:
    """Whether agents lease the groups of a run with this validated config. Live traffic leases
    none."""
    is_live = value_at(config, "data.source") == "sessions"
    return value_at(config, "rollout.episode.type") == "sessions" and not is_live
