"""Runs from submission to end: their records, their queues and chains, their learner's ranks, and
what is known of each task."""
