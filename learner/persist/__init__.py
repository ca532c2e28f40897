"""Writes to the data volume: on a thread, with retries on a full disk, rows and answers in files.

Imports neither the coordinator nor the training scripts.
"""
