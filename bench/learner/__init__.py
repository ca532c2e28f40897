"""The learner alone: its speed, its memory, and which models fit which GPUs."""
