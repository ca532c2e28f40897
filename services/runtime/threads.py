"""How the threads of a process that computes on a CPU wait for each other."""

WAITING = {
    # How often a thread that waits for the others of a product looks before it sleeps. By default
    # it looks for milliseconds, and holds a core that others need. On two cores that twelve other
    # threads used too, small products of two threads took ten times the CPU time.
    "GOMP_SPINCOUNT": "1000",
}
"""Defaults in the environment: a user's own values stay."""
