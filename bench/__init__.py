"""Benchmarks: each measures this machine in one run, prints a table and keeps every figure.

A package for each thing that is measured; `runs` has `headrace bench`. docs/benchmarks.md and
docs/recipes.md explain the figures. `simulated` has what stands in for GPUs, processes and
networks. No process of Headrace imports this package.
"""
