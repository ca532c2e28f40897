"""Optimizers and learning rate schedules. Imports no run, no store and no disk."""
