"""Settings for all tiers, made before the first test."""

import atexit
import gc
import os
import signal
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import settings

from services.runtime.threads import WAITING

# A shell ignores SIGINT for a background job, and nohup ignores SIGHUP. Children inherit that, and
# tests that send these signals would wait for ever. A handler is not inherited, and lets
# `nohup make test` continue without a terminal.
signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda number, frame: None)

# A report takes two seconds of a core at the end of each run; tests of reports ask for them.
os.environ.setdefault("HEADRACE_REPORTS", "false")

# Tests name models that no hub has. Nothing listens on port 9, so nobody asks a hub.
os.environ.setdefault("HF_ENDPOINT", "http://127.0.0.1:9")

# Read when torch is imported, here and in what tests start: as Headrace's own processes have it.
for name, value in WAITING.items():
    os.environ.setdefault(name, value)

# How long an example takes says more about the machine's other work than about the code.
settings.register_profile("headrace", deadline=None)
settings.load_profile("headrace")

SHARED = (
    *("tests/chaos/", "tests/integration/installation/", "tests/e2e/", "tests/browser/"),
    "tests/integration/reward/remote/",
)
"""Folders whose tests share one installation, service or browser, or a real vLLM, which has half of
the cores."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Never look for cycles among what is imported and collected: while that was built, it took a
    quarter of the CPU time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        # Frozen objects are not freed at the end, and libraries complain.
        atexit.register(gc.unfreeze)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each worker of pytest-xdist whole files, and all files that share an installation."""
    from xdist.scheduler import LoadScopeScheduling

    class ByInstallation(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = nodeid.partition("::")[0]
            return next((folder for folder in SHARED if file.startswith(folder)), file)

    return ByInstallation(config, log)
