"""Attention over packed rows: layouts, kernels, ranks that share a row. Knows nothing of files or
losses."""
