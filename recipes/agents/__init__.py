"""Agents that come with Headrace: programs that know nothing of it but a row and a reward."""
