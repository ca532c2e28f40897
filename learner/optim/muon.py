"""Muon over whole matrices, or over matrices with rows on every rank.

Orthogonalising needs whole matrices. A sharded matrix is gathered when its turn comes,
orthogonalised by every rank, and dropped. Momentum and weights are updated in place. The arithmetic
is that of `torch.optim.Muon`, whose options it also has, except that a CPU iterates in float32.
"""

from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim._muon import _adjust_lr

from learner.slices import local, row_range, whole


class Muon(torch.optim.Muon):
    """`torch.optim.Muon` that also takes DTensors with rows on every rank. All ranks step
    together."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is not None:
                    self._update(matrix, matrix.grad, group)

    def _update(self, matrix: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[matrix]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        momentum: torch.Tensor = state["momentum_buffer"]
        momentum.lerp_(gradient, 1 - group["momentum"])
        direction = gradient.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum
        even = orthogonal(
            whole(direction), group["ns_coefficients"], group["ns_steps"], group["eps"]
        )
        if isinstance(matrix, DTensor):
            even = even[slice(*row_range(matrix))]
        rows = local(matrix)
        rows.mul_(1 - group["lr"] * group["weight_decay"])
        rows.add_(even, alpha=-_adjust_lr(group["lr"], group["adjust_lr_fn"], matrix.shape))


def orthogonal(
    matrix: torch.Tensor, coefficients: tuple[float, float, float], steps: int, eps: float
) -> torch.Tensor:
    """Return `matrix` [m, n] with singular values near 1, by `steps` Newton–Schulz iterations. Each
    maps a singular value x to ax + bx³ + cx⁵ (Jordan 2024,
    https://kellerjordan.github.io/posts/muon/).

    The iterations run in bfloat16, as in torch, but on a CPU in float32: CPUs without bfloat16
    instructions multiply bfloat16 ten times slower.
    """
    a, b, c = coefficients
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x.to(torch.float32 if matrix.device.type == "cpu" else torch.bfloat16)
    # The iteration converges for a spectral norm of at most 1.
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x
