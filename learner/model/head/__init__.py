"""From hidden states to log-probabilities: the output head, whole or over a sampling mask, and
models' own scaling of logits."""
