"""Batches: turn trajectory groups and dataset rows into samples with advantages and returns, and
deal the samples to ranks.

Pure: imports `objective`, and neither models nor the store nor the disk.
"""
