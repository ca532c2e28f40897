"""The pool of killable worker processes: fork server, workers, protocol, pool.

Imports `reward.verifiers`; knows nothing of HTTP and of remote verifiers.
"""
