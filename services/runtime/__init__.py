"""A process's access to its machine: logs, child processes, GPUs, keys, addresses, probes.

Imports no other package of `services` but settings.
"""
