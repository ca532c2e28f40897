"""The only code that talks to Redis.

Each part of the store is a class of calls: about runs in `runs/`, about tasks, groups and weights
in `work/`, about agents' sessions in `agents/`, about keys in `access/`. `insight` reads across
them, and `server/` is about Redis itself.

Each change that must be atomic is one Lua script, with its invariant above it, in the folder of
`lua/` that has its caller's name. All keys of a run carry the run's hash tag, so a script touches
one cluster slot. Every script may be run twice with the same arguments: the client repeats a call
whose reply was lost. All calls are asynchronous; the learner makes them through a blocking portal.
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
