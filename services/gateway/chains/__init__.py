"""Chains: the check of a submission, and the loop that goes from one step to the next.

`submission` checks all steps before anything is queued, `advance` submits each step's run when the
run before it has succeeded, and `deletion` deletes a chain with its runs. The record and its pure
changes are in `services.contracts.chains`.
"""
