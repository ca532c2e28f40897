"""A gateway that kills itself at the call that DIES_AT names, as a crash at that moment would."""

import os
import runpy
import signal
from typing import Any

from services.store.access.idempotency_keys import IdempotencyKeys
from services.store.datasets import Datasets
from services.store.runs.runs import Runs


async def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


PLACES: dict[str, tuple[type, str]] = {
    "finish": (IdempotencyKeys, "finish"),
    "list": (Runs, "_list"),
    "dataset": (Datasets, "add"),
    "queue": (Runs, "_queue"),
}
owner, call = PLACES[os.environ["DIES_AT"]]
setattr(owner, call, die)
runpy.run_module("services.gateway", run_name="__main__")
