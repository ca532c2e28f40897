"""Rank 0's work between two batches: form batches, request evaluations, decide what is due. Also
the limit on crashes.

Only the training scripts import this package.
"""
