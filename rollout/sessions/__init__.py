"""Sessions of agents, in a worker: takes calls from Redis, samples turns, completes ended groups.

Imports `rollout.work` and `rollout.vllm`. Only `rollout.worker_supervisor` imports it.
"""
