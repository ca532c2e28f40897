"""A vLLM server's weights: follows new versions, loads them, and proves them by the canary."""
