"""A rank of a learner on several hosts that only meets the others: `meeting_rank.py LOG`.

It writes a line when they have met, and then exchanges messages until it must end.
"""

import os
import signal
import sys
import threading
from pathlib import Path

from learner.distributed import start_ranks, stop_ranks
from learner.settings import LearnerSettings
from learner.store.rendezvous import rendezvous
from learner.store.thread import StoreThread


def main() -> None:
    log, stop = Path(sys.argv[1]), threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    with StoreThread(LearnerSettings(), stop) as thread:
        ranks = start_ranks(rendezvous(thread, stop))
        names = ranks.gather(f"{ranks.rank}".encode())
        with log.open("a") as file:
            file.write(f"{os.getpid()} {ranks.rank} {b' '.join(names).decode()}\n")
        while not ranks.max([stop.is_set()])[0]:
            stop.wait(0.05)
        stop_ranks(ranks)


if __name__ == "__main__":
    main()
