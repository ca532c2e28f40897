"""The pool of killable worker processes: fork server, workers, protocol, pool.

The package imports `reward.verifiers`. It knows nothing of HTTP and of remote verifiers.
"""
