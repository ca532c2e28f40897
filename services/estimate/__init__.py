"""The memory and the disk that a run needs.

Arithmetic over a model's config and the headers of its weights. Imports neither torch nor Redis.

The gateway refuses by it what cannot fit, `headrace submit --dry-run` shows it, and the learner's
`training.parallel: auto` decides by it.
"""
