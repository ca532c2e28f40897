"""The learner alone: its speed, its memory, and what fits where."""
