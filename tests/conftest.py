"""What every tier needs before its first test."""

import signal

# A shell starts what it puts in the background with SIGINT ignored, children inherit that, and the
# tests that interrupt a process would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)
