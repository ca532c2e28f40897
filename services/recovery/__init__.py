"""Detects that Redis has lost acknowledged writes, and goes on from what is left.

Redis should keep what it has acknowledged, but a failed disk, a failover to a replica that lagged,
or a truncated file may lose it. So the data volume has copies of the most important records
(`copies`), written after Redis has acknowledged them: a copy that Redis does not know proves a
loss. This package may import the store and the volume, and nothing of gateway, launcher and
learner.
"""
