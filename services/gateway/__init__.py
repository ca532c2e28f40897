"""The REST API and the page: the only public port of an installation.

Routers in `routes/` parse, call one function and return a model. `submission/` checks a run before
it is queued, `chains/` advances chains, `sessions/` and `policy/` answer OpenAI's API (`openai/`),
and `problems` turns every error into an RFC 9457 document. The gateway keeps no state (Redis and
the data volume do), so it may restart at any time. It imports no torch.
"""
