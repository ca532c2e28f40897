"""From completions to rewards: the reward service's client, and how its scores are combined.

Imports of `rollout` only the HTTP transport.
"""
