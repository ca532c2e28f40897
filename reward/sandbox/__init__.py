"""Runs untrusted programs; docs/sandbox.md lists what they can and cannot do.

`host` runs in a verifier's worker. The rest runs in isolated processes, under a Python that the
operator may choose, and imports only the standard library.
"""
