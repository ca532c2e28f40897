"""The process of a vLLM server: its options, start, end, sleep, logs, and locks on its GPU.

Imports `rollout.vllm.client`, never `rollout.vllm.weights`.
"""
