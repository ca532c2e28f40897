"""A gateway that kills itself at the call that DIES_AT names, as a crash at that moment would."""

import os
import runpy
import signal
from typing import Any

from services.store.access.idempotency_keys import IdempotencyKeys
from services.store.runs.runs import Runs


async def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if os.environ["DIES_AT"] == "finish":
    setattr(IdempotencyKeys, "finish", die)  # noqa: B010 - mypy refuses an assignment
else:
    setattr(Runs, "_list", die)  # noqa: B010
runpy.run_module("services.gateway", run_name="__main__")
