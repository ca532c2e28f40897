"""Sessions of agents, in a worker: takes calls from Redis, samples turns, completes ended groups.

Imports `rollout.work` and `rollout.vllm`. Only `rollout.supervisor` imports it.
"""
