"""Runs programs that nobody trusts: see docs/sandbox.md for what they can and cannot do.

`host` is the side that asks, in a verifier's worker. The rest runs in processes of its own that see
nothing of the host, under whatever Python the operator names: it imports only the standard library.
"""
