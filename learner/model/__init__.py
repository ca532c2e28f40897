"""Models: loading, adapters, packed passes, log-probabilities, value models, references.

Imports `batch`, `optim` and `objective`; neither the store nor the coordinator. Writes only model
folders that its caller names.
"""
