"""The only code that talks to Redis.

One module per noun (`runs`, `prompts`, `trajectories`, `weights`, `evaluations`, `workers`,
`datasets`, `events`); each change that must be atomic is one Lua script in `lua/`, with its
invariant above it. Everything of one run carries the run's hash tag, so a script touches one
cluster slot. Asynchronous throughout; the learner calls it through a blocking portal.
"""

from services.store.client import Store, UnsafeRedis
from services.store.errors import Fenced

__all__ = ["Fenced", "Store", "UnsafeRedis"]
