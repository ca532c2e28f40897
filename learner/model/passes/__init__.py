"""Passes over packed rows: rows, families and micro-batches of samples, log-probabilities, routers'
balance, and what passes cost. Imports no files of models."""
