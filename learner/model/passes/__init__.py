"""Passes over packed rows: rows, families and micro-batches of samples, log-probabilities, router
balance, and the cost of passes. Reads no model files."""
