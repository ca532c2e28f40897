"""Names of keys. `{…}` is the cluster hash tag: all keys of a run are in one slot."""

SCHEMA = "headrace:schema"
RUNS = "headrace:runs"
CHANGES = "headrace:changes"
DATASETS = "headrace:{datasets}:records"
DATASET_NAMES = "headrace:{datasets}:names"
POOLS = "headrace:pools"
API_KEYS = "headrace:api-keys"
CHAINS = "headrace:{chains}:records"
OPEN_CHAINS = "headrace:{chains}:open"
LOGS = "headrace:logs"
LOGS_PLACE = "headrace:logs:reward"
LOGS_LEASE = "headrace:logs:lease"

RESTORING = "headrace:restoring"

LIVE_PARTS = ("sessions_open", "sessions_waiting", "sessions_ready")
"""Keys of live sessions. A backup leaves them out: the sessions that they name expire, and are not
in the backup."""
EMPTIED_PARTS = (
    *("evaluation", "evaluation_queue", "evaluation_requests", "evaluation_ended"),
    *("evaluation_returned", "evaluation_attempts", "evaluation_held", "evaluation_parts"),
    *("evaluation_answers", "evaluation_seats"),
    *("calls", "calls_due", "calls_asked", "calls_ended", "calls_load"),
    *LIVE_PARTS,
)
"""Keys that are deleted when a run ends, besides the keys that `close_run.lua` names."""
IN_FLIGHT_PARTS = ("attempts", "held", "groups", "blobs", "bytes", "plans", "tries", "partials")
"""Keys of the tasks that a run has begun and not ended."""
RUN_PARTS = (
    *("run", "order", "returned", "lineages", "ledger", "weights", "events", "prompt_filter"),
    *("pass_rates", "judged", "log", *IN_FLIGHT_PARTS, *EMPTIED_PARTS),
)
"""All keys that a run may have."""
POOL_PARTS = ("queue", "active", "learner", "workers", "heartbeats", "devices")
POOL_PARTS_KEPT = ("queue", "active")
"""The keys of a pool that outlive its processes."""

PATTERNS = {
    **{part: "headrace:{{{run}}}:" + part for part in RUN_PARTS},
    **{part: "headrace:{{pool:{pool}}}:" + part for part in POOL_PARTS},
    "deadlines": "headrace:{{{run}}}:{deadlines}",
    "sessions": "headrace:{{{run}}}:sessions:{attempt}",
    "responses": "headrace:{{{run}}}:responses:{attempt}:{index}",
    "sessions_named": "headrace:{{{run}}}:sessions:named:{group}",
    "changes": CHANGES,
    "chains": "headrace:{{chains}}:records",
    "open_chains": "headrace:{{chains}}:open",
    "datasets": "headrace:{{datasets}}:records",
    "dataset_names": "headrace:{{datasets}}:names",
    "dataset_change": "headrace:{{datasets}}:records:{change}",
    "idempotency": "headrace:idempotency:{digest}",
}
"""The keys that a Lua script may name in its `-- KEYS` line. `str.format` fills in the rest:
`deadlines` is the part of a run with the deadlines of attempts, of live sessions, or of seats;
`index` is a session's place in its attempt;
`group` is the digest of a group's name; `change` is a token of one call; `digest` is that of a
caller and its Idempotency-Key."""


def token_key(kind: str, digest: str) -> str:
    """The key of a session of the page, or of a link that begins a session."""
    return f"headrace:{kind}:{digest}"


def run_key(run: str, part: str) -> str:
    """A key of one run. Raises ValueError for a part that is not among RUN_PARTS."""
    if part not in RUN_PARTS:
        raise ValueError(f"a run has no key {part!r}")
    return f"headrace:{{{run}}}:{part}"


def sessions_key(run: str, attempt: str) -> str:
    """The key of the sessions of one attempt, which expires."""
    return f"headrace:{{{run}}}:sessions:{attempt}"


def responses_key(run: str, attempt: str, index: int) -> str:
    """The key of what the Responses API keeps of a session, which expires."""
    return f"headrace:{{{run}}}:responses:{attempt}:{index}"


def named_key(run: str, digest: str) -> str:
    """The key with the attempt of a group that a client has named, which expires."""
    return f"headrace:{{{run}}}:sessions:named:{digest}"


def policy_key(run: str, kind: str, name: str) -> str:
    """A key of the policy as an endpoint, which expires. `kind` is `call`, `answer`, or `worker`
    for a worker's queue of calls."""
    return f"headrace:{{{run}}}:policy:{kind}:{name}"


def model_key(pool: str, kind: str, name: str) -> str:
    """A key of the models that a pool's workers serve on demand, which expires. `kind` is `wanted`,
    `lease` or `failed`. `wanted` with an empty name is the list of demands."""
    return f"headrace:{{pool:{pool}}}:models:{kind}:{name}"


def pool_key(pool: str, part: str) -> str:
    """A key of one pool. Raises ValueError for a part that is not among POOL_PARTS."""
    if part not in POOL_PARTS:
        raise ValueError(f"a pool has no key {part!r}")
    return f"headrace:{{pool:{pool}}}:{part}"
