"""`python -m learner.tools.ranks COUNT BACKEND`: whether ranks on this machine reach each other.

Each rank adds a vector of 64 MB to the others', ten times. Prints the speed; exits with 1 if a rank
fails or the sum is wrong.
"""

import os
import socket
import sys
import time

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

NUMBERS = 16 << 20
ROUNDS = 10


def main() -> int:
    """Run as many ranks as the arguments say. Returns the exit code."""
    count, backend = int(sys.argv[1]), sys.argv[2]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawn(_rank, (count, backend, port), nprocs=count)
    return 0


def _rank(rank: int, count: int, backend: str, port: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    dist.init_process_group(backend, rank=rank, world_size=count)
    numbers = torch.ones(NUMBERS, device=device)
    dist.all_reduce(numbers)
    if numbers.min() != count or numbers.max() != count:
        raise ValueError(f"the sum of {count} ranks is {numbers.min():g} to {numbers.max():g}")
    began = time.perf_counter()
    for _ in range(ROUNDS):
        dist.all_reduce(numbers)
    # Reading a number waits for the device.
    numbers[0].item()
    seconds = (time.perf_counter() - began) / ROUNDS
    if rank == 0:
        print(f"{count} ranks add {NUMBERS * 4 / 1e6:.0f} MB in {seconds * 1000:.1f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
