"""The HTTP client of a vLLM server: samples out, weights in, scores of the canary.

Imports neither `rollout.vllm.process` nor `rollout.vllm.weights`.
"""
