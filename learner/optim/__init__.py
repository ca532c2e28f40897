"""Optimizers and learning rate schedules. Imports neither runs nor the store nor the disk."""
