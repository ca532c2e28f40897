"""Models: a package for each concern.

    loading      models from folders, adapters, and what is written of them
    passes       rows, micro-batches, log-probabilities
    attention    over packed rows
    head         from hidden states to log-probabilities
    moe          routers and experts
    placement    on every rank, in slices, or on the host

The modules beside them put these together: value models, references, compiling, the plan of passes.
Imports `batch`, `optim` and `objective`; neither the store nor the coordinator. Writes only model
folders that its caller names.
"""
