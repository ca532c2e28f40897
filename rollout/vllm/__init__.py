"""A worker's vLLM server: its process, options, HTTP client, GPU locks, and its weights.

Imports neither `rollout.work` nor the worker loop. Never imports vLLM or torch.
"""
