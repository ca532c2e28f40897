"""Where weights are: on every rank, in slices, or on the host while they are idle."""
