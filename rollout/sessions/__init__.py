"""Sessions of agents, in a worker: calls taken from Redis, turns sampled, ended groups handed in.

Imports `rollout.work` and `rollout.vllm`; nothing but `rollout.supervisor` imports it.
"""
