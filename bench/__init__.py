"""Benchmarks: each measures this machine, prints one table for each part, and keeps every figure.

`runner` measures for all of them; the other modules say what. docs/benchmarks.md explains the
figures. No process of Headrace imports this package.
"""
