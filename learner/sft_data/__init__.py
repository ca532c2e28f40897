"""Rows of supervised runs: tokenised once, cached on the data volume, and read ahead."""
