"""What docs/security.md promises, one file per concern.

A package, so that fixtures end with its last test (see `tests`).
"""
