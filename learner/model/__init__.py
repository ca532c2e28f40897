"""Models: one package per concern.

    loading      models from folders, adapters, and the files that are written for a model
    passes       rows, micro-batches, log-probabilities
    attention    attention over packed rows
    head         from hidden states to log-probabilities
    moe          routers and experts
    placement    weights on every rank, in slices, or on the host

The modules next to these packages combine them: value models, references, compiling, the plan of
passes. Imports `batch`, `optim` and `objective`, but neither the store nor the coordinator. Writes
only to model folders that its caller names.
"""
