"""A learner rank as the supervisor starts it: tied to that, then busy until it is ended."""

import signal

from services.runtime.process import die_with_parent


def main() -> None:
    die_with_parent()
    print("rank up", flush=True)
    signal.pause()
