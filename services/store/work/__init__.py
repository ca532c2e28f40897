"""Calls of workers and of the learner about tasks, groups, evaluations and weights."""
