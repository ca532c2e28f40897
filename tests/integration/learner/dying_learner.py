"""A learner that dies as it reports a step, when its checkpoint thread has done all it was given.

`dying_learner.py STEP HOW`: `python -m learner`, ended where it comes to report step STEP: by the
signal HOW, or where HOW is `Redis`, as by a Redis that is gone.
"""

import os
import signal
import sys
from typing import Any

from redis.exceptions import ConnectionError

from learner.__main__ import main
from learner.checkpointer import Checkpointer
from learner.link import RunLink

STEP, HOW = int(sys.argv[1]), sys.argv[2]
reported = RunLink.step_done
started = Checkpointer.__init__
checkpointers: list[Checkpointer] = []


def start(self: Checkpointer, *given: Any) -> None:
    """Can be asked later whether it is done."""
    started(self, *given)
    checkpointers.append(self)


def report(self: RunLink, step: int, *given: Any, **options: Any) -> None:
    """Up to step STEP, as always."""
    if options.get("kind", "step") == "step" and step == STEP:
        checkpointers[-1].wait()
        if HOW == "Redis":
            raise ConnectionError("away")
        os.kill(os.getpid(), signal.Signals[HOW])
    reported(self, step, *given, **options)


if __name__ == "__main__":
    del sys.argv[1:]
    RunLink.step_done = report  # type: ignore[method-assign]
    Checkpointer.__init__ = start  # type: ignore[assignment, method-assign]
    sys.exit(main())
