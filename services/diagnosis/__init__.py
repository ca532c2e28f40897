"""Diagnoses why a run is slow or stuck: one cause and its sentence, from the run's state.

`diagnose` asks the questions in order; the other modules answer those about the queue, the workers
and the groups. Pure: imports `services.contracts` only. `services.store.insight` gathers the state.
"""
