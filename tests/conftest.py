"""What every tier needs before its first test."""

import signal

from hypothesis import settings

# A shell starts what it puts in the background with SIGINT ignored, children inherit that, and the
# tests that interrupt a process would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says more about the machine's other work than about the code.
settings.register_profile("headrace", deadline=None)
settings.load_profile("headrace")
