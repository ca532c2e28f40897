"""Conversations that programs outside have with the policy."""
