"""Verifiers that ask another service: a judge, a reward model, an own verifier by URL."""
