"""Programs that these tests run in a sandbox."""

from reward.sandbox.limits import Limits
from reward.sandbox.running_program import ProgramEnding
from reward.sandbox.sandbox_host import ProgramTask, Sandbox

MEMORY = 128 << 20


def run(sandbox: Sandbox, source: str, stdin: str = "", seconds: float = 1.0) -> ProgramEnding:
    limits = Limits(seconds=seconds, wall_seconds=2 * seconds, memory_bytes=MEMORY)
    (ending,) = sandbox.run(
        [ProgramTask({"kind": "script", "source": source}, stdin.encode())], limits
    )
    return ending


def zygote(sandbox: Sandbox) -> int:
    return sandbox._zygote.pid
