"""`headrace up`: all processes of an installation on one machine, without Docker.

Here live the choice of ports, cores and GPUs, the local Redis, the process tree and its display.
Nothing here knows what a process does: parts are command lines, an environment and a readiness
address. Imports neither the processes (`learner`, `rollout`, `reward`) nor `services.cli`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from services.launch.data_folder import DataFolder, holder_of
    from services.launch.options import ALL_PARTS, LaunchError, UpOptions, parts_named
    from services.launch.part import Status
    from services.launch.plan import configured_redis_url
    from services.launch.redis_trial import discard_copy, redis_on_a_copy, use_copy
    from services.launch.stack import Stack, redis_of
    from services.launch.up import run

__all__ = [
    "ALL_PARTS",
    "DataFolder",
    "LaunchError",
    "Stack",
    "Status",
    "UpOptions",
    "configured_redis_url",
    "discard_copy",
    "holder_of",
    "parts_named",
    "redis_of",
    "redis_on_a_copy",
    "run",
    "use_copy",
]

MODULES_OF = {
    **dict.fromkeys(("DataFolder", "holder_of"), "data_folder"),
    **dict.fromkeys(("ALL_PARTS", "LaunchError", "UpOptions", "parts_named"), "options"),
    **dict.fromkeys(("discard_copy", "redis_on_a_copy", "use_copy"), "redis_trial"),
    **dict.fromkeys(("Stack", "redis_of"), "stack"),
    "Status": "part",
    "configured_redis_url": "plan",
    "run": "up",
}
"""The modules of these names."""


def __getattr__(name: str) -> Any:
    """Import what is used first: all of it takes half a second, which `headrace scale` need not
    pay."""
    if name not in MODULES_OF:
        raise AttributeError(f"module 'services.launch' has no attribute {name!r}")
    return getattr(import_module(f"services.launch.{MODULES_OF[name]}"), name)
