"""Chains: what may be submitted, and the loop that goes from one step to the next.

`submission` checks all steps before anything is queued, `advance` submits each step's run when the
one before it has succeeded, `deletion` deletes a chain with its runs. The record and its pure
changes are `services.contracts.chains`.
"""
