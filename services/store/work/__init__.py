"""What workers lease, serve and hand in: prompts, groups, evaluations, and the weights for them."""
