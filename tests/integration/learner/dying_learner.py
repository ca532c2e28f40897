"""A learner that dies as it reports a step, after its checkpoint thread has finished all submitted
work.

`dying_learner.py STEP HOW`: `python -m learner.rank` that ends when it reports step STEP: by the
signal HOW, or with HOW `Redis` as if Redis were gone.
"""

import os
import signal
import sys
from typing import Any

from redis.exceptions import ConnectionError

from learner.checkpoints.background_writer import CheckpointWriter
from learner.rank import main
from learner.store.run_store import RunStore

STEP, HOW = int(sys.argv[1]), sys.argv[2]
reported = RunStore.step_done
started = CheckpointWriter.__init__
writers: list[CheckpointWriter] = []


def start(self: CheckpointWriter, *given: Any) -> None:
    """A writer whose end of work can be checked later."""
    started(self, *given)
    writers.append(self)


def report(self: RunStore, step: int, *given: Any, **options: Any) -> None:
    """Report up to step STEP as always."""
    if options.get("kind", "step") == "step" and step == STEP:
        writers[-1].wait()
        if HOW == "Redis":
            raise ConnectionError("away")
        os.kill(os.getpid(), signal.Signals[HOW])
    reported(self, step, *given, **options)


if __name__ == "__main__":
    del sys.argv[1:]
    RunStore.step_done = report  # type: ignore[method-assign]
    CheckpointWriter.__init__ = start  # type: ignore[assignment, method-assign]
    sys.exit(main())
