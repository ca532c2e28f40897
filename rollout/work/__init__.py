"""Work on leased tasks: leases, groups, evaluation, filtering, and how many groups fit.

Imports `rollout.vllm`, `rollout.rewards` and `rollout.episodes`, never the supervisor or the worker
loop.
"""
