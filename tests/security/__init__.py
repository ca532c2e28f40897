"""The promises of docs/security.md, one file per concern.

A package, so that fixtures end with its last test (see `tests`).
"""
