"""Mixtures of experts: hooks on routers, and experts that compute in the type of the pass."""
