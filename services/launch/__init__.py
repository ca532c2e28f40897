"""`headrace up`: all processes of an installation on one machine, without Docker.

Here live the choice of ports, cores and GPUs, the local Redis, the process tree and its display.
Nothing here knows what a process does: parts are command lines, an environment and a readiness
address. Imports neither the processes (`learner`, `rollout`, `reward`) nor `services.cli`.
"""

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
