"""From completions to rewards: the reward service's client, and how its scores are combined.

Imports only the HTTP transport from `rollout`.
"""
