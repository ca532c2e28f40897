"""Benchmarks: each measures this machine in one run, prints a table and keeps every figure.

`training` and `generation` (`headrace bench`), `control_plane`, `overlap`, `learner`, `recipes` and
`reward` are commands; docs/benchmarks.md and docs/recipes.md explain their figures. `simulated` has
what stands in for GPUs, processes and networks. No process of Headrace imports this package.
"""
