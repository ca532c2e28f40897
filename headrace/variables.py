"""The names of all `HEADRACE_*` variables, and a warning for a name that nothing reads.

A process ignores a variable that it does not know, because the variable may be another process's.
So each process knows the names of all.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from headrace.nearest import nearest

PREFIX = "HEADRACE_"
POOL_NAME = r"^[a-z0-9][a-z0-9-]{0,62}$"


def _variables(endings: str) -> frozenset[str]:
    return frozenset(f"{PREFIX}{ending}" for ending in endings.split())


SETTINGS = _variables(
    """
    ALIVE_FILE ALLOWED_HOSTS ALLOW_UNSAFE_REDIS API_KEY BODY_LIMIT CODE_PYTHON
    CODE_WITHOUT_ISOLATION DATA DRAIN_DELAY DRAIN_TIMEOUT EMBEDDINGS ENDPOINT_KEYS EVALUATION_ONLY
    FILE_BANDWIDTH_MBIT GATEWAY_URL GPUS_PER_WORKER GPU_HOUR_PRICE GPU_LOCKS HOST JUDGES
    KEEP_FINISHED_CHECKPOINTS KEEP_FINISHED_SECONDS KEEP_ROLLOUTS_DAYS LEARNER_GPUS LOG_FORMAT
    LOG_LEVEL MAX_QUEUED_ITEMS MCP_SERVERS PAYLOADS_URL PAYLOAD_FILE_BYTES PEER_URL
    POLICY_CALLS POLICY_CALLS_A_MINUTE POLICY_MAX_TOKENS POOL PORT RANKS
    REDIS_PASSWORD REDIS_URL REMOTE_AT_ONCE REMOTE_BATCH REPORTS REWARD_GPUS REWARD_KEY
    REWARD_MODELS REWARD_MODEL_BATCH_TOKENS REWARD_MODEL_CODE REWARD_MODEL_DEVICE
    REWARD_MODEL_DTYPE REWARD_MODEL_MAX_TOKENS REWARD_URL SANDBOX_SOCKET SERVING_ONLY SOCKET
    SPARE_WORKERS TEACHERS TRACKERS TRUST_REMOTE_CODE UPLOAD_LIMIT VERIFIERS VERIFIER_UPLOADS
    VLLM_COMMAND VLLM_GPU_MEMORY_UTILIZATION VLLM_KV_CACHE_GIB VLLM_START_TRIES
    WORKER WORKERS WORKER_CLASS WORKER_MEMORY_MB
    """
)
"""The settings of all processes (docs/config.md)."""
OTHERS = _variables(
    """
    CPU_RANKS DATA_FOLDER GRAFANA_IMAGE GRAFANA_LISTEN GRAFANA_PORT HOME LEARNER_MASTER
    LEARNER_NODE LEARNER_NODES LEARNER_PORT LEARNER_RANKS LISTEN MODELS PEER_LISTEN
    PROMETHEUS_IMAGE PYTHON_IMAGE REDIS_IMAGE REDIS_LISTEN REDIS_PORT
    REWARD_ENDPOINT_KEYS REWARD_WORKERS ROLLOUTS SANDBOX_MEMORY SANDBOX_WORKERS SECRETS SERVING
    SHM_SIZE TRACKER_PACKAGES VERSION
    INSTANCE PART PEER_LISTENER RANKS_OF RENDEZVOUS RESTARTS STARTS
    SUPERVISOR VLLM_OWNED
    BASE_URL REWARD_FILE ROW SESSION
    CHAOS_PARALLEL CHAOS_SEED CHAOS_VLLM SOAK_MINUTES SOAK_RESULT TEST_SERVERS
    """
)
"""The variables of Compose and Slurm, of processes for their children, of agents, and of tests."""
SERVICE_LINK = re.compile(r"_SERVICE_(HOST|PORT\w*)$|_PORT(_\d+_(TCP|UDP)\w*)?$")
"""Kubernetes makes such variables for a service called headrace-…."""


LINE = re.compile(
    r"""^\s*(?:export\s+)?(\w+)\s*=[ \t]*('[^'\n]*'|"[^"\n]*"|(?:(?!\s\#)[^\n])*)""", re.MULTILINE
)
"""A line of `.env`: a name, and a value that may have quotes. ` #` begins a comment."""


def places() -> dict[str, str]:
    """Where each `HEADRACE_*` variable of this process is set, in words, by its name."""
    places = {}
    dotenv = Path(".env")
    for name, _ in LINE.findall(_text_of(dotenv)):
        places[name.upper()] = str(dotenv.absolute())
    places |= {name.upper(): "the environment" for name in os.environ}
    return {name: place for name, place in places.items() if name.startswith(PREFIX)}


def values() -> dict[str, str]:
    """The values of the `HEADRACE_*` variables. The environment wins over `.env`."""
    known = {name.upper(): _unquoted(text) for name, text in LINE.findall(_text_of(Path(".env")))}
    known |= {name.upper(): value for name, value in os.environ.items()}
    return {name: value for name, value in known.items() if name.startswith(PREFIX)}


def unusable(values: Mapping[str, str]) -> str | None:
    """Say which of the variables that every command reads has a value that makes no sense."""
    pool = values.get("HEADRACE_POOL")
    if pool is None or re.match(POOL_NAME, pool):
        return None
    return f"--pool (HEADRACE_POOL): must be text of the form {POOL_NAME}, not {pool[:200]!r}"


def _text_of(dotenv: Path) -> str:
    try:
        return dotenv.read_text(errors="replace")
    except OSError:
        return ""


def _unquoted(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def named_by(setting: str) -> str | None:
    """The variable of a setting and the place that sets it; None if it is not set."""
    variable = f"{PREFIX}{setting.upper()}"
    place = places().get(variable)
    return f"{variable} in {place}" if place else None


def unread(places: Mapping[str, str]) -> list[str]:
    """A warning for each `HEADRACE_*` name that nothing reads, with the nearest name. `places`:
    where each name is set, in words."""
    return [
        f"nothing reads {name}, which is set in {place}{_nearest(name)}"
        for name, place in sorted(places.items())
        if not _is_read(name)
    ]


def _is_read(name: str) -> bool:
    stem = name.removesuffix("_FILE")
    return name in OTHERS or stem in SETTINGS or SERVICE_LINK.search(name) is not None


def _nearest(name: str) -> str:
    """All names have the prefix in common, so only the rest is compared. Settings come first."""
    for known in (SETTINGS, OTHERS):
        endings = (full.removeprefix(PREFIX) for full in known)
        if near := nearest(name.removeprefix(PREFIX), endings):
            return f" (did you mean {PREFIX}{near}?)"
    return ""
