"""Carry a run's metrics to experiment trackers.

`trackers` has one class for each tracker. `python -m services.tracking` carries one run to one
tracker; the gateway starts it (`services.gateway.tracking`). `headrace track` carries a run from
the user's own machine with the same classes. Trackers never see Redis, and runs do not wait for
them.
"""
