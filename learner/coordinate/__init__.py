"""What rank 0 does between two batches: form batches, request evaluations, decide what is due; and
the limit on crashes.

Only the training scripts import it.
"""
