"""Verifiers that compare text or check its form."""
