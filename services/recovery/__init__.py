"""Finds out that Redis has lost writes that it had acknowledged, and goes on from what is left.

Redis is trusted to keep what it has acknowledged, and may break that: a failed disk, a failover to
a replica that lagged, a file that somebody cut. So the data volume has copies of the records that
matter most (`copies`), written after Redis has acknowledged them: a copy that Redis does not know
proves a loss. May import the store and the volume; nothing of gateway, launcher and learner.
"""
