"""The objective: scores, advantages, losses, corrections, KL and their composition.

Pure functions of tensors and config. Imports no other package of the learner.
"""
