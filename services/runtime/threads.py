"""How the threads of a process that computes on a CPU wait for each other."""

WAITING = {
    # Iterations for which a thread of a matrix product spins before it sleeps. The default spins
    # for milliseconds and holds a core that others need: on two cores with twelve other busy
    # threads, small products of two threads took ten times the CPU time.
    "GOMP_SPINCOUNT": "1000",
}
"""Defaults in the environment; a user's own values stay."""
