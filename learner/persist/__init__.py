"""Data that the learner writes to the data volume and restores from it: checkpoints, versions,
rows.

Imports neither the coordinator nor the training scripts.
"""
