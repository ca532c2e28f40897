"""Runs untrusted programs; docs/sandbox.md lists what they can and cannot do.

`host` runs in a verifier's worker. All other modules run in isolated processes, under a Python that
the operator may choose, and import only the standard library.
"""
