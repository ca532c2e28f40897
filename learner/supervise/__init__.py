"""The supervisor of the learner's ranks on one host, and how several hosts agree on a start.

This package starts, watches and ends ranks, and trains nothing. It must not import torch: the
import takes seconds, and the supervisor has nothing to compute. `rank_server` imports torch through
the name of the module that the ranks run.
"""
