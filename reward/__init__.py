"""The reward service: verifiers, and the pool of killable processes that they run in.

May live here: verifiers, the pool, and the HTTP application over it. May not: anything of
Redis, runs or weights. The service is stateless, knows no run, and imports neither torch nor
vLLM in its main process.
"""
