"""What every tier needs before its first test."""

import signal

from hypothesis import settings

# A shell starts what it puts in the background with SIGINT ignored, nohup with SIGHUP ignored.
# Children inherit that, and the tests that send one of them would wait for ever. A handler, which
# children do not inherit, lets `nohup make test` go on without a terminal all the same.
signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda number, frame: None)

# How long an example takes says more about the machine's other work than about the code.
settings.register_profile("headrace", deadline=None)
settings.load_profile("headrace")
