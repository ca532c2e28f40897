"""Names of keys. `{…}` is the cluster hash tag: all keys of a run share one slot."""

SCHEMA = "headrace:schema"
RUNS = "headrace:runs"
DATASETS = "headrace:{datasets}:records"
DATASET_NAMES = "headrace:{datasets}:names"
POOLS = "headrace:pools"
API_KEYS = "headrace:api-keys"
CHAINS = "headrace:{chains}:records"
OPEN_CHAINS = "headrace:{chains}:open"

RESTORING = "headrace:restoring"

LIVE_PARTS = ("sessions_open", "sessions_waiting", "sessions_ready")
"""Of live sessions. A backup leaves them out: the sessions that they name expire, and are in no
backup."""
RUN_PARTS = (
    *("run", "order", "returned", "attempts", "held", "tries", "groups", "blobs", "bytes", "plans"),
    *("lineages", "ledger", "weights", "events", "prompt_filter", "pass_rates"),
    "judged",
    *("evaluation", "evaluation_queue", "evaluation_requests", "evaluation_ended"),
    *("evaluation_returned", "evaluation_attempts", "evaluation_held", "evaluation_parts"),
    *("evaluation_answers", "evaluation_seats"),
    *("calls", "calls_due", "calls_asked", "calls_ended", "calls_load"),
    *LIVE_PARTS,
)
"""All keys that a run may have."""
POOL_PARTS = ("queue", "active", "learner", "workers", "heartbeats", "nodes", "ranks", "devices")
POOL_PARTS_KEPT = ("queue", "active")
"""What of a pool outlives its processes."""


def token_key(kind: str, digest: str) -> str:
    """The key of a session of the page, or of a link that begins one."""
    return f"headrace:{kind}:{digest}"


def run_key(run: str, part: str) -> str:
    """A key of one run. Raises ValueError for a part that is not among RUN_PARTS."""
    if part not in RUN_PARTS:
        raise ValueError(f"a run has no key {part!r}")
    return f"headrace:{{{run}}}:{part}"


def sessions_key(run: str, attempt: str) -> str:
    """The key of the sessions of one attempt, which expires."""
    return f"headrace:{{{run}}}:sessions:{attempt}"


def named_key(run: str, digest: str) -> str:
    """The key of the attempt of a group that a client has named, which expires."""
    return f"headrace:{{{run}}}:sessions:named:{digest}"


def policy_key(run: str, kind: str, name: str) -> str:
    """A key of the policy as an endpoint, which expires: of a call, its answer, or a worker's
    queue of calls."""
    return f"headrace:{{{run}}}:policy:{kind}:{name}"


def pool_key(pool: str, part: str) -> str:
    """A key of one pool. Raises ValueError for a part that is not among POOL_PARTS."""
    if part not in POOL_PARTS:
        raise ValueError(f"a pool has no key {part!r}")
    return f"headrace:{{pool:{pool}}}:{part}"
