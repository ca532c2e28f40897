"""Batches: from trajectory groups and dataset rows to samples with advantages and returns, and
which rank trains which of them.

Pure. Imports `objective`; no model, no store, no disk.
"""
