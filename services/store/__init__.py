"""The only code that talks to Redis.

One module per noun (`runs`, `prompts`, `trajectories`, `weights`, `evaluations`, `workers`,
`datasets`, `api_keys`, `events`, `ledger`, `ranks`, `insight`); each change that must be atomic is
one Lua script in `lua/`, with its invariant above it. Everything of one run carries the run's hash
tag, so a script touches one cluster slot. Every script may be run twice with the same arguments:
the client repeats a call whose reply was lost. Asynchronous throughout; the learner calls it
through a blocking portal.
"""

from services.store.audit import Audit
from services.store.client import Store
from services.store.durability import UnsafeRedis
from services.store.errors import (
    Fenced,
    Gone,
    LostWrites,
    PlanStands,
    RedisFull,
    StillRunning,
    Unplanned,
    Unreadable,
)

__all__ = [
    "Audit",
    "Fenced",
    "Gone",
    "LostWrites",
    "PlanStands",
    "RedisFull",
    "StillRunning",
    "Store",
    "Unplanned",
    "Unreadable",
    "UnsafeRedis",
]
