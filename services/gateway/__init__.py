"""The REST API and the page: the only public port of an installation.

Routers in `routes/` parse, call one function and return a model; `submission` holds what a run is
checked for before it is queued; `problems` turns every error into an RFC 9457 document. State is
in Redis and on the data volume, none is here: the gateway may die and come back at any time.
Trains nothing, samples nothing, imports no torch.
"""
