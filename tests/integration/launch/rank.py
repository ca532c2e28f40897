"""A learner rank as torchrun starts it: tied to torchrun, then busy until it is ended."""

import signal

from services.runtime.process import die_with_parent

die_with_parent()
print("rank up", flush=True)
signal.pause()
