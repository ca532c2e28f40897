"""Verifiers that misbehave on purpose, for the service under test (`--verifiers probes:…`)."""

import ctypes
import os
import signal
import subprocess
import time
from pathlib import Path

from pydantic import Field

from reward.verifiers.base import Item, Verdict, Verifier, VerifierParams, correct
from services.contracts.scores import ScoreStatus


class GateParams(VerifierParams):
    """Where the gate stands."""

    folder: Path = Field(description="`arrived-PID` appears here; a file `open` lets it go on.")


class Gate(Verifier[GateParams]):
    """Waits until a test lets it go on."""

    name = "gate"
    description = "Waits for a file, then everything is correct."
    Params = GateParams

    def score(self, item: Item, params: GateParams) -> Verdict:
        (params.folder / f"arrived-{os.getpid()}").touch()
        while not (params.folder / "open").exists():
            time.sleep(0.005)
        return correct()


class Bad(Verifier[VerifierParams]):
    """Does what the completion names."""

    name = "bad"
    description = "Breaks down in the way that the completion names."
    Params = VerifierParams

    def score(self, item: Item, params: VerifierParams) -> Verdict:
        match item.completion:
            case "raise":
                raise RuntimeError("as asked")
            case "columns":
                return correct(str(item.columns))
            case "exit":
                os._exit(3)
            case "segfault":
                ctypes.string_at(0)
            case "nan":
                return Verdict(ScoreStatus.SCORED, float("nan"))
            case "null":
                return Verdict(ScoreStatus.WRONG, None)
            case "parts":
                return Verdict(ScoreStatus.SCORED, 1.0, parts=[(5, 1.0), (4, 1.0)])
            case "status":
                return Verdict("good", 1.0)  # type: ignore[arg-type]
            case "memory":
                return correct(str(len(bytearray(1 << 34))))
            case "stubborn":
                signal.pthread_sigmask(signal.SIG_BLOCK, range(1, signal.NSIG))
                child = subprocess.Popen(["sleep", "600"])
                Path(item.answer).write_text(f"{os.getpid()} {child.pid}")
                while True:
                    time.sleep(60)
        return correct()
