"""Runs from submission to end: their records, queues and chains, the ranks of their learner, and
the end of each task."""
