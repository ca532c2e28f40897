"""Metrics of a step and samples to show, from plain values. No store, no disk."""
