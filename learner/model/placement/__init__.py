"""Placement of weights: on every rank, in slices, or on the host while they are idle."""
