"""Checkpoints: copied to the host, written so that a crash is harmless, read back, and deleted.

Imports neither the coordinator nor the training scripts.
"""
