"""What a run needs: memory of each GPU, disk, time.

Arithmetic over a model's config and the headers of its weights; no torch, no Redis.

The gateway refuses by it what cannot fit, `headrace submit --dry-run` shows it, and the learner's
`training.parallel: auto` decides by it.
"""
