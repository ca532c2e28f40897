"""Tensors of a GPU on the host, as they were when they were taken, while the GPU goes on."""

import pytest
import torch

from learner.persist.host_copies import PIECE, HostCopies

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_copies_wait_for_what_the_device_still_computes_and_are_exact() -> None:
    copies = HostCopies(torch.device("cuda"))
    square = torch.randn(4096, 4096, device="cuda")
    # Takes milliseconds: without the mark the copies would begin before it is done.
    for _ in range(20):
        square = square @ square / square.norm()
    sizes = (0, 1, PIECE // 2 - 1, PIECE // 2 + 1, 3 * PIECE)
    tensors = [torch.arange(size, device="cuda").to(torch.int16) for size in sizes]
    tensors.append(square.view(torch.int32))
    found = copies.copied(tensors, copies.now())
    for host, tensor in zip(found, tensors, strict=True):
        assert host.device.type == "cpu"
        assert torch.equal(host, tensor.cpu())
