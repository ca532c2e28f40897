"""Why a run is slow or stuck: one cause and its sentence, from how the run stands.

Pure: imports `services.contracts` only. `services.store.insight` gathers what it looks at.
"""
