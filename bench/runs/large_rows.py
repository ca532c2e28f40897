"""`python -m bench.runs.large_rows`: memory and start of a supervised run on rows that do not
fit into memory.

Generates so many GB of conversations, uploads them, and trains a small model on them twice for a
few steps: first without tokens on the disk, then with them. Prints the most memory that each
process had of its own (files that are mapped do not count), and the seconds from the start of each
run to the end of its first step. Needs five times the size of the rows on the disk of `--data`.
"""

import argparse
import json
import random
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.installation import LOGS, Installation, exit_code

PARTS = frozenset({"redis", "gateway", "reward", "learner"})
STEPS = 3
WORDS = 500
"""In an answer."""
LOOK_SECONDS = 0.5
PATIENCE = 10_800.0
"""Seconds without a step: all rows are tokenized before the first one."""
CONFIG = {
    "training": {"max_steps": STEPS, "rows_per_step": 8},
    "data": {"dataset": "large", "max_seq_len": 512, "overlong": "crop", "template": "{prompt}"},
    "model": {"max_length": 512, "tokenizer": {"type": "bpe"}},
}


def generate(file: Path, size: int) -> None:
    """Rows of random words, about `size` bytes."""
    draw = random.Random(0)
    words = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(2, 9))) for _ in range(5000)]
    with file.open("w") as out:
        number = 0
        while out.tell() < size:
            answer = " ".join(draw.choices(words, k=WORDS))
            out.write(json.dumps({"prompt": f"Text {number}:", "answer": answer}) + "\n")
            number += 1


def own_memory(pid: int) -> int:
    """Bytes that a process has to itself."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    named = dict(line.split(":", 1) for line in lines)
    return sum(int(named[key].split()[0]) << 10 for key in ("RssAnon", "RssShmem"))


@contextmanager
def watched(stack: Installation) -> Iterator[dict[str, int]]:
    """The most memory of each process during the block, by its command line."""
    most: dict[str, int] = {}
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_SECONDS):
            for folder in Path("/proc").glob("[0-9]*"):
                try:
                    if str(stack.data) not in (folder / "environ").read_text(errors="replace"):
                        continue
                    words = (folder / "cmdline").read_text().split("\0")
                    name = " ".join(word for word in words[1:4] if word) or words[0]
                    most[name] = max(most.get(name, 0), own_memory(int(folder.name)))
                except (OSError, KeyError):
                    continue

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield most
    finally:
        over.set()
        looking.join()


def measure(installation: Installation, size: int) -> None:
    """Print what was found. Raises BenchFailed."""
    file = installation.data / "large.jsonl"
    generate(file, size)
    with watched(installation) as most, file.open("rb") as content:
        files = {"file": (file.name, content)}
        installation.api.post("/v1/datasets", files=files, data={"name": "large"})
    file.unlink()
    print_memory("upload", most)
    for name in ("without tokens", "with tokens"):
        with watched(installation) as most:
            run = installation.submit("demo_sft", name, CONFIG)
            record = installation.finish(run, PATIENCE)
        rows = installation.metrics(record["id"])
        first = rows[0]["time"] - record["created"]
        print(f"{name}: first step {first:.1f} s after the submission", flush=True)
        print_memory(name, most)


def print_memory(what: str, most: dict[str, int]) -> None:
    for name, size in sorted(most.items(), key=lambda one: -one[1])[:5]:
        print(f"  {what}: {size / 1e9:.2f} GB  {name}", flush=True)


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=5.0)
    parser.add_argument("--data", type=Path, help="where to work; default: a temporary folder")
    given = parser.parse_args()
    size = int(given.gigabytes * 1e9)
    # The file's last row, and what a multipart body adds.
    environment = LOGS | {"HEADRACE_UPLOAD_LIMIT": str(size + (1 << 20))}

    def measured() -> None:
        with (
            tempfile.TemporaryDirectory(dir=given.data) as folder,
            Installation(Path(folder), parts=PARTS, environment=environment) as installation,
        ):
            measure(installation, size)

    return exit_code(measured)


if __name__ == "__main__":
    sys.exit(main())
