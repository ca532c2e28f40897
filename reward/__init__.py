"""The reward service: an HTTP application over a pool of killable worker processes.

Modules here: the process (`__main__`, `settings`), the application (`app`, `scoring`,
`validation`, `metrics`), teachers and the pool of remote verifiers (`remote_pool`). Verifiers,
worker processes, reward models and the sandbox have packages of their own. Nothing here knows
Redis, runs or weights, and the main process imports neither torch nor vLLM.
"""
