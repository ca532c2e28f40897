"""A worker's vLLM server: its process, its HTTP client, and its weights.

Imports neither `rollout.work` nor the worker loop. Never imports vLLM or torch.
"""
