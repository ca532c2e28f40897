"""Why a run is slow or stuck: one cause and its sentence, from how the run stands.

`diagnose` asks the questions in their order; the other modules answer those about the queue, the
workers and the groups. Pure: imports `services.contracts` only. `services.store.insight` gathers
what it looks at.
"""
