"""The `math` verifier, and the reading of answers and numbers that other verifiers share."""
