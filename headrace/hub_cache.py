"""Where the hub's own library keeps a model that it has downloaded."""

import os
from collections.abc import Mapping
from pathlib import Path


def hub_cache_entry(name: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the hub's model `name` (org/name) in this user's cache, whether or not
    it exists. `environment`: the variables of the hub's own library."""
    home = environment.get("HF_HOME") or "~/.cache/huggingface"
    cache = environment.get("HF_HUB_CACHE") or f"{home}/hub"
    return Path(cache).expanduser() / f"models--{name.replace('/', '--')}"
