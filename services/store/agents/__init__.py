"""Conversations of external programs with the policy."""
