"""Commands on what a run has trained: its evaluations, its checkpoints."""
