"""The only code that talks to Redis.

A noun is a class of calls: of runs in `runs/`, of what workers lease and hand in in `work/`, of
agents' sessions in `agents/`, of keys in `access/`; `insight` reads across them, and `server/` is
about Redis itself. Each change that must be atomic is one Lua script, with its invariant above it,
in the folder of `lua/` that is called like its caller. Everything of one run carries the run's hash
tag, so a script touches one cluster slot. Every script may be run twice with the same arguments:
the client repeats a call whose reply was lost. Asynchronous throughout; the learner calls it
through a blocking portal.
"""

from services.store.client import Store
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
from services.store.runs.audit import Audit
from services.store.server.durability import UnsafeRedis

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
