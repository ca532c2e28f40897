"""A step's metrics, and samples for the log, from plain values. Uses neither store nor disk."""
