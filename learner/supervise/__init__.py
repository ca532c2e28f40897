"""The supervisor of the learner's ranks on one host, and how those of several hosts agree.

Code that starts, watches and ends ranks belongs here; nothing that trains. Must not import torch:
it takes seconds, and the supervisor has nothing to compute. `rank_server` imports it by the name of
the module that the ranks run.
"""
