"""Muon over matrices of which each rank holds some rows.

Orthogonalising takes whole matrices: each is gathered when it is its turn, orthogonalised by every
rank, and dropped. Momentum and weights are updated where they lie. The arithmetic is that of
`torch.optim.Muon`, whose options this has.
"""

from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim._muon import _adjust_lr, _zeropower_via_newtonschulz

from learner.slices import local, row_range, whole


class ShardedMuon(torch.optim.Muon):
    """`torch.optim.Muon` for DTensors with rows on every rank. All ranks step together."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is not None:
                    self._update(matrix, matrix.grad, group)

    def _update(self, matrix: DTensor, gradient: DTensor, group: dict[str, Any]) -> None:
        state = self.state[matrix]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        momentum: DTensor = state["momentum_buffer"]
        momentum.lerp_(gradient, 1 - group["momentum"])
        direction = gradient.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum
        options = (group["ns_coefficients"], group["ns_steps"], group["eps"])
        even = _zeropower_via_newtonschulz(whole(direction), *options)
        rate = _adjust_lr(group["lr"], group["adjust_lr_fn"], matrix.shape)
        start, stop = row_range(matrix)
        rows = local(matrix)
        rows.mul_(1 - group["lr"] * group["weight_decay"])
        rows.add_(even[start:stop], alpha=-rate)
