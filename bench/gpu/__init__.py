"""Headrace on one GPU: its kernels, the learner, and the whole loop with a real vLLM."""
