"""See the package. Exit code 1 if a program gets a verdict that it does not deserve.

python -m tests.security.corpus [--beside-hostile N] [--times K]
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from tests.integration.reward.conftest import Service
from tests.security.corpus import Entry, right, wrong
from tests.security.corpus.scoring import hostile, scored, undeserved


def main() -> None:
    """Score and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--beside-hostile", type=int, default=0, metavar="N",
        help="score only the correct programs, beside a program with N processes",
    )  # fmt: skip
    parser.add_argument("--times", type=int, default=1, help="how often")
    parser.add_argument("--only", default="", help="only programs whose name contains this")
    options = parser.parse_args()
    entries = right() if options.beside_hostile else [*right(), *wrong()]
    entries = [entry for entry in entries if options.only in entry.name]
    with tempfile.TemporaryDirectory() as folder:
        service = Service(Path(folder))
        try:
            failed = asyncio.run(_run(service, entries, options.beside_hostile, options.times))
        finally:
            service.end()
    sys.exit(1 if failed else 0)


async def _run(service: Service, entries: list[Entry], children: int, times: int) -> int:
    await service.ready()
    failed = 0
    async with service.client() as client, hostile(service, children):
        for number in range(1, times + 1):
            began = time.monotonic()
            found = undeserved(entries, await scored(client, entries))
            failed += len(found)
            for name, given in found.items():
                print(f"{name}: {given}")
            seconds = time.monotonic() - began
            print(f"round {number}: {len(entries)} programs, {len(found)} undeserved verdicts, "
                  f"{seconds:.0f} s", flush=True)  # fmt: skip
    return failed


if __name__ == "__main__":
    main()
