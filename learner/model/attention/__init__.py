"""Attention over packed rows: layouts, kernels, ranks that share a row. Independent of files and
losses."""
