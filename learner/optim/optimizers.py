"""The optimizers of a run, stepped together. Their state is a dictionary of plain tensors.

The state must never be saved as a pickle. It goes to safetensors as `<parameter>/<entry>`, and a
quantised entry as `<parameter>/<entry>.<part>`.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from learner.distributed import Ranks
from learner.errors import RunCannotGoOn
from learner.optim.muon import Muon
from learner.slices import WHOLE, RankPart, rows_of, to_host, whole
from services.contracts.config.optimizer import AdamW, AdamW8bit, MuonAdamW

Config = AdamW | AdamW8bit | MuonAdamW
PARTS = ("codes", "scale", "qmap")
"""Tensors of a quantised entry: codes, a scale for each block of codes, the codes' values."""


class Optimizers:
    """Torch optimizers over the parameters of one model.

    With `in_backward` each parameter has its own optimizer. It steps during the backward pass that
    `last_pass` announced, as soon as the parameter's gradient is complete.
    """

    def __init__(self, model: PreTrainedModel, config: Config) -> None:
        self.names = {p: name for name, p in model.named_parameters() if p.requires_grad}
        self._config, self.max_grad_norm = config, config.max_grad_norm
        self.in_backward = config.in_backward
        self._last, self._squares = False, 0.0
        matrices = _block_matrices(model, self.names) if isinstance(config, MuonAdamW) else []
        chosen = {id(p) for p in matrices}
        rest = [p for p in self.names if id(p) not in chosen]
        self.parts: list[torch.optim.Optimizer] = []
        outer = _outer(model) if isinstance(config, MuonAdamW) else {}
        for members, make in ((matrices, _muon), (rest, partial(_adamw, outer=outer))):
            shares = [[p] for p in members] if self.in_backward else [members] if members else []
            self.parts += [make(share, config) for share in shares]
        self._owner = {
            p: part for part in self.parts for g in part.param_groups for p in g["params"]
        }
        self._peaks = [[float(group["lr"]) for group in part.param_groups] for part in self.parts]
        if self.in_backward:
            for parameter in self.names:
                parameter.register_post_accumulate_grad_hook(self._update)

    def set_peak(self, lr: float) -> None:
        """Make `lr` the peak of every learning rate."""
        self._peaks = [[lr] * len(peaks) for peaks in self._peaks]

    def set_lr(self, share: float) -> float:
        """Set every learning rate to `share` of its peak. Returns the rate of the first group."""
        for part, peaks in zip(self.parts, self._peaks, strict=True):
            for group, peak in zip(part.param_groups, peaks, strict=True):
                if isinstance(group["lr"], torch.Tensor):
                    group["lr"].fill_(peak * share)
                else:
                    group["lr"] = peak * share
        return float(self.parts[0].param_groups[0]["lr"])

    def set_momentum(self, batch: int) -> None:
        """Set Muon's momentum for `batch` (from 0)."""
        for part in self.parts:
            if isinstance(part, torch.optim.Muon) and isinstance(self._config, MuonAdamW):
                for group in part.param_groups:
                    group["momentum"] = momentum_at(self._config, batch)

    def last_pass(self) -> None:
        """Announce that the next backward pass is the last one before `step`."""
        self._last = True

    def step(self) -> float:
        """Clip, update, clear. Returns the gradient's global norm before clipping.

        If the norm is not finite, the update is skipped: one bad batch must not destroy the
        weights. With `in_backward` the updates are already made, and each parameter was checked by
        its own norm.
        """
        if self.in_backward:
            norm, self._last, self._squares = self._squares**0.5, False, 0.0
        else:
            limit = self.max_grad_norm if self.max_grad_norm is not None else float("inf")
            norm = _clipped(list(self.names), limit)
            if _finite(norm):
                for part in self.parts:
                    _step(part)
        self.clear()
        return norm

    def _update(self, parameter: torch.Tensor) -> None:
        if not self._last or parameter.grad is None:
            return
        # The norm is over all ranks' rows, because every rank must make the same decision.
        norm = float(whole(torch.linalg.vector_norm(parameter.grad)))
        self._squares += norm * norm
        if _finite(norm):
            _step(self._owner[parameter])
        parameter.grad = None

    def clear(self) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def state(self) -> dict[str, torch.Tensor]:
        """Return the whole state, without copies. It is empty before the first step."""
        return {
            f"{self.names[parameter]}/{entry}{suffix}": tensor
            for part in self.parts
            for parameter, state in part.state.items()
            for entry, value in state.items()
            for suffix, tensor in _plain(value)
        }

    def tensors(
        self,
        part: RankPart = WHOLE,
        copy: Callable[[torch.Tensor], torch.Tensor] = to_host,
    ) -> dict[str, torch.Tensor]:
        """Return a copy of `part` of the state on the host, made with `copy`. For a sharded state
        all ranks call this together."""
        state, copied = self.state(), {}
        kept = part.of(state)
        for name, tensor in state.items():
            every = whole(tensor)
            if name in kept:
                copied[name] = copy(every)
        return copied

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        return {name: p for p, name in self.names.items()}

    def load(self, tensors: dict[str, torch.Tensor]) -> None:
        """Load a copy from `tensors()`. Raises ValueError for a parameter that this model lacks."""
        parameters = self.parameters
        quantised: dict[tuple[nn.Parameter, str], dict[str, torch.Tensor]] = {}
        for key, tensor in tensors.items():
            name, _, entry = key.rpartition("/")
            if name not in parameters:
                raise ValueError(
                    f"the checkpoint's optimizer state names {name!r}, which this model lacks"
                )
            parameter = parameters[name]
            if tensor.shape == parameter.shape:
                tensor = rows_of(tensor, parameter)
            here = tensor.to(parameter.device).clone()
            entry, _, part = entry.partition(".")
            if part:
                quantised.setdefault((parameter, entry), {})[part] = here
            else:
                self._owner[parameter].state[parameter][entry] = here
        for (parameter, entry), parts in quantised.items():
            self._owner[parameter].state[parameter][entry] = _quantised(parts, entry, parameter)


def check_optimizer(config: Config, key: str, ranks: Ranks, sharded: bool) -> None:
    """Raise RunCannotGoOn if the ranks cannot train with `config`, which is at `key` of the run's
    config. `sharded`: whether each rank holds a slice of the weights."""
    if config.in_backward and ranks.size > 1 and not sharded:
        raise RunCannotGoOn(
            f"{key}.in_backward updates a weight before the gradients of the {ranks.size} ranks "
            "are summed: set training.parallel to fsdp, start the learner with one, or leave it out"
        )
    if isinstance(config, AdamW8bit) and sharded:
        raise RunCannotGoOn(
            f"{key}.type adamw_8bit has one scale for 256 entries, whatever rows they are of, and "
            "with training.parallel fsdp each rank holds rows: use adamw, whose state the "
            f"{ranks.size} ranks share, or ddp"
        )


def momentum_at(config: MuonAdamW, batch: int) -> float:
    """Return Muon's momentum in `batch` (from 0). It rises linearly (nanochat's
    get_muon_momentum)."""
    if config.momentum_start is None:
        return config.momentum
    risen = min(batch / config.momentum_warmup_steps, 1.0)
    return (1 - risen) * config.momentum_start + risen * config.momentum


def _muon(parameters: list[nn.Parameter], config: Config) -> torch.optim.Optimizer:
    assert isinstance(config, MuonAdamW)
    rate = config.lr * config.initial_lr_fraction
    return Muon(parameters, lr=rate, momentum=config.momentum, weight_decay=config.weight_decay)


def _adamw(
    parameters: list[nn.Parameter], config: Config, outer: dict[int, str]
) -> torch.optim.Optimizer:
    """`outer`: kind (embedding or head) of the outer parameters, by id."""
    groups = _groups(parameters, config, outer)
    if isinstance(config, AdamW8bit):
        # The import takes a second, which only users of this optimizer should wait for.
        from torchao.optim import AdamW8bit as Quantised

        return Quantised(groups, betas=config.betas, eps=config.eps)
    return torch.optim.AdamW(groups, betas=config.betas, eps=config.eps, fused=True)


def _step(part: torch.optim.Optimizer) -> None:
    with _uncompiled(part):
        part.step()


def _uncompiled(part: torch.optim.Optimizer) -> AbstractContextManager[Any]:
    """Disable torchao's compiler on a CPU, where compiling takes 10 s per weight shape, longer than
    training a small model. On a GPU compiling avoids copies of the largest weights."""
    first = part.param_groups[0]["params"][0]
    if isinstance(part, torch.optim.AdamW | torch.optim.Muon) or first.device.type != "cpu":
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


def _plain(value: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the plain tensors of an entry of the state, each with the suffix of its name."""
    if type(value) in (torch.Tensor, DTensor):
        yield "", value
    else:
        yield from ((f".{part}", getattr(value, part)) for part in PARTS)


def _quantised(parts: dict[str, torch.Tensor], entry: str, parameter: nn.Parameter) -> Any:
    from torchao.optim.subclass_8bit import OptimState8bit

    signed = entry == "exp_avg"
    return OptimState8bit(*(parts[part] for part in PARTS), signed, parameter.dtype)


def _clipped(parameters: list[nn.Parameter], limit: float) -> float:
    """Clip the gradients to a global norm of `limit`. Returns the norm over all ranks before
    clipping."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = whole(nn.utils.get_total_norm(gradients))
    nn.utils.clip_grads_with_norm_(parameters, limit, norm)
    return float(norm)


def _finite(norm: float) -> bool:
    return norm == norm and norm != float("inf")


def _groups(
    parameters: Iterable[nn.Parameter], config: Config, outer: dict[int, str]
) -> list[dict[str, object]]:
    """Return AdamW's groups, one a kind of parameter, each with a rate and a decay. Matrices decay;
    vectors (norms, biases) do not. `outer`: the kind by id of an embedding or a head, which have a
    rate and a decay of their own beside Muon."""
    kinds: dict[str, list[nn.Parameter]] = {}
    for parameter in parameters:
        kind = outer.get(id(parameter), "matrix" if parameter.ndim >= 2 else "vector")
        kinds.setdefault(kind, []).append(parameter)
    usual, rates = config.lr, {}
    decays = {"vector": 0.0}
    if isinstance(config, MuonAdamW):
        fraction = config.initial_lr_fraction
        usual = config.adamw_lr * fraction
        overrides = {
            "embedding": (config.embedding_lr, config.embedding_weight_decay),
            "head": (config.unembedding_lr, config.unembedding_weight_decay),
            "vector": (config.scalar_lr, 0.0),
        }
        rates = {kind: rate * fraction for kind, (rate, _) in overrides.items() if rate is not None}
        decays = {kind: decay for kind, (_, decay) in overrides.items() if decay is not None}
    return [
        {
            "params": members,
            "lr": rates.get(kind, usual),
            "weight_decay": decays.get(kind, config.weight_decay),
        }
        for kind, members in kinds.items()
        if members
    ]


def _outer(model: PreTrainedModel) -> dict[int, str]:
    """Return the kind of the embedding and of a separate output head, by parameter id."""
    kinds: dict[int, str] = {}
    for kind, module in (
        ("head", model.get_output_embeddings()),
        ("embedding", model.get_input_embeddings()),
    ):
        if module is not None:
            kinds[id(module.weight)] = kind
    return kinds


def _block_matrices(
    model: PreTrainedModel, parameters: Iterable[nn.Parameter]
) -> list[nn.Parameter]:
    heads = (model.get_output_embeddings(), getattr(model, "score", None))
    # GPT-2 also has position embeddings.
    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    outside = {id(module.weight) for module in (*embeddings, *heads) if module is not None}
    return [p for p in parameters if p.ndim == 2 and id(p) not in outside]
