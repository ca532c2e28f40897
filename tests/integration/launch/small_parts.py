"""Small real processes in place of the five big ones, with the habits that make those hard to end.

Run as a script it is `headrace up` over such parts: `python small_parts.py DATA KIND`.
"""

import sys
from dataclasses import replace
from pathlib import Path

from services.launch import LaunchError, UpOptions, run
from services.launch.part import Part
from services.launch.plan import Plan

# Writes "TERM" when asked to stop, as a service that ends in order would.
OBEDIENT = """
import signal, sys
def leave(number, frame):
    print("TERM", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("up", flush=True)
signal.pause()
"""

# Ignores SIGTERM, as a process stuck in a driver does.
STUBBORN = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
while True:
    signal.pause()
"""

# As a learner: a child in a session of its own, which ties itself to its parent. And as the worst
# library: another child in a session of its own that does nothing of the kind.
AGENT = """
import signal, subprocess, sys
loose = "import signal; signal.pause()"
tied = "from services.runtime.process import die_with_parent; die_with_parent(); " + loose
for code in (tied, loose)[: int(sys.argv[1])]:
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
print("up", flush=True)
signal.pause()
"""

TWO_RANKS = """
import sys
from learner.settings import LearnerSettings
from learner.supervise.rank_supervisor import supervise
sys.exit(supervise(LearnerSettings(ranks=2), ["tests.integration.launch.rank"]))
"""

CRASHING = "import sys; sys.exit('the GPU is on fire')"
MISCONFIGURED = "import sys; print('error: --port (HEADRACE_PORT): not a port'); sys.exit(2)"


def script(name: str, code: str, *arguments: str, stage: int = 2) -> Part:
    return Part(name=name, argv=(sys.executable, "-c", code, *arguments), stage=stage)


KINDS: dict[str, tuple[Part, ...]] = {
    "obedient": (
        script("redis", OBEDIENT, stage=0),
        script("gateway", OBEDIENT, stage=1),
        script("learner", OBEDIENT),
    ),
    "stubborn": (script("redis", OBEDIENT, stage=0), script("learner", STUBBORN)),
    "agent": (script("redis", OBEDIENT, stage=0), script("learner", AGENT, "1")),
    "agent-with-loose-child": (script("learner", AGENT, "2"),),
    "crashing": (script("redis", OBEDIENT, stage=0), script("learner", CRASHING)),
    "hopeless": (replace(script("learner", CRASHING), is_final=lambda text: "on fire" in text),),
    "misconfigured": (
        script("redis", OBEDIENT, stage=0),
        script("reward", MISCONFIGURED, stage=1),
    ),
    "learner": (script("learner", TWO_RANKS),),
}


def planner(kind: str, options: UpOptions, data: Path) -> Plan:
    return Plan(KINDS[kind], "redis://127.0.0.1:1/0", "http://127.0.0.1:1", "http://127.0.0.1:1")


def main() -> int:
    data, kind = Path(sys.argv[1]), sys.argv[2]
    try:
        return run(
            UpOptions(data=data, grace=float(sys.argv[3]), start_tries=2),
            planner=lambda options, folder: planner(kind, options, folder),
        )
    except LaunchError as error:
        print(error)
        return 1


if __name__ == "__main__":
    sys.exit(main())
