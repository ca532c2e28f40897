"""Commands on what a run has trained: ask it, evaluate it, compare it, export it."""
