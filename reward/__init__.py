"""The reward service: an HTTP application over a pool of killable worker processes.

The modules here are the process (`__main__`, `settings`), the application (`app`, `scoring`,
`validation`, `metrics`), the teachers and the pool of remote verifiers (`remote_pool`). Verifiers,
worker processes, reward models and the sandbox have packages of their own. The package knows
nothing of Redis, runs or weights. Its main process imports neither torch nor vLLM.
"""
