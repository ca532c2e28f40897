"""Copies of the policy without gradients: the reference of the KL, and a lagged proximal policy.

A copy is fixed while a batch is trained, and follows the policy between two batches. All ranks hold
the same copies, because they follow policies that are equal bit for bit.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from headrace.config_keys import REFERENCE, TEACHER
from learner.distributed import Ranks
from learner.errors import UnusableModel
from learner.model.compiling import Backend, compile_blocks
from learner.model.loading.lora import BaseLogprobs
from learner.model.loading.model_loader import load_model
from learner.model.moe.routing import Routing
from learner.model.passes.logprobs import TokenLogprobs
from learner.model.placement.offload import Offload, offloads, place, present
from learner.model.placement.parallel import is_sharded, shard
from learner.slices import local, whole
from services.contracts.config import PretrainedModel, RLConfig, SFTConfig
from services.contracts.config.objective.copies import (
    EMAReference,
    FrozenReference,
    LaggedProximal,
    Reference,
    RefreshReference,
)
from services.contracts.config.objective.terms import NoKL
from services.models.vocabulary import vocabulary_difference

Copied = Literal["reference", "lagged", "teacher"]


@dataclass(frozen=True)
class Following:
    """How a copy follows the policy: weights += rate · (policy − weights), every `every` steps."""

    every: int = 1
    rate: float = 1.0


@dataclass
class PolicyCopy:
    """A policy that training does not change directly."""

    logprobs: TokenLogprobs | BaseLogprobs
    following: Following | None = None
    """None: the copy is frozen."""
    offload: Offload | None = None
    """Keeps its weights on the host between its passes."""
    tokenizer: Any = None
    """Tokenizer of the folder that the copy was loaded from."""

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """Its weights by name. Offloaded weights have no memory."""
        assert isinstance(self.logprobs, TokenLogprobs), "a reference beside adapters is frozen"
        return dict(self.logprobs.model.named_parameters())

    @contextmanager
    def present(self, changed: bool = False) -> Iterator[TokenLogprobs | BaseLogprobs]:
        """Provide the copy on its device. `changed`: the block changes its weights."""
        with present([self.offload] if self.offload else [], changed):
            yield self.logprobs

    @torch.no_grad()
    def after_step(self, step: int, policy: PreTrainedModel) -> None:
        """Follow `policy`, as of `step`."""
        following = self.following
        if following is None or step % following.every:
            return
        trained = dict(policy.named_parameters())
        for name, parameter in self.parameters.items():
            # Offloaded weights follow on the host.
            weight = self.offload.host[parameter] if self.offload else local(parameter)
            newest = trained[name]
            # A copy on another device is whole.
            newest = local(newest) if isinstance(parameter, DTensor) else whole(newest)
            newest = newest.to(weight.device)
            if following.rate == 1:
                weight.copy_(newest)
            else:
                weight.lerp_(newest, following.rate)


@dataclass
class Copies:
    reference: PolicyCopy | None = None
    lagged: PolicyCopy | None = None
    teacher: PolicyCopy | None = None
    """Another model, which has the policy's tokens."""

    @property
    def moving(self) -> dict[str, PolicyCopy]:
        named = {"reference": self.reference, "lagged": self.lagged}
        return {name: copy for name, copy in named.items() if copy and copy.following}

    def after_step(self, step: int, policy: PreTrainedModel) -> None:
        for copy in self.moving.values():
            copy.after_step(step, policy)


@dataclass(frozen=True)
class Scorers:
    """Paths of the models that score the policy's answers, if they are not the model that the run
    starts from."""

    teacher: str | None = None
    reference: str | None = None


@dataclass(frozen=True)
class CopiedPolicy:
    policy: TokenLogprobs
    ranks: Ranks
    compiled: Backend | None = None
    tokenizer: Any = None


def load_copies(
    config: RLConfig, copied: CopiedPolicy, base: str, start: str, scorers: Scorers = Scorers()
) -> Copies:
    """Load the copies that the objective needs, before a checkpoint's weights are loaded into them.
    A reference is the model at `base` unless `scorers` names another. A lagged copy is the policy
    at `start`. With adapters the reference is the policy without them. Raises UnusableModel,
    UnusableDevice."""

    def loaded(path: str, name: Copied, follows: Following | None, key: str = "") -> PolicyCopy:
        copy = make_copy(path, config, copied, name, follows)
        if key:
            check_tokens(key, path, copied.tokenizer, copy.tokenizer)
            check_follows(key, path, copy, copied.policy)
        return copy

    copies = Copies()
    kl = config.algorithm.kl
    if not isinstance(kl, NoKL) and config.model.lora is not None:
        copies.reference = PolicyCopy(BaseLogprobs(copied.policy))
    elif not isinstance(kl, NoKL):
        key = REFERENCE if scorers.reference else ""
        path = scorers.reference or base
        copies.reference = loaded(path, "reference", following(kl.reference), key)
    proximal = config.algorithm.proximal
    if isinstance(proximal, LaggedProximal):
        copies.lagged = loaded(start, "lagged", following(proximal))
    if scorers.teacher is not None:
        copies.teacher = loaded(scorers.teacher, "teacher", None, TEACHER)
    return copies


def load_reference(config: SFTConfig, copied: CopiedPolicy, base: str) -> PolicyCopy:
    """Load the model at `base`, the reference of a supervised run. With adapters the reference is
    the policy without them. Raises UnusableModel."""
    assert isinstance(config.model, PretrainedModel)
    if config.model.lora is not None:
        return PolicyCopy(BaseLogprobs(copied.policy))
    return make_copy(base, config, copied, "reference")


def make_copy(
    path: str,
    config: RLConfig | SFTConfig,
    copied: CopiedPolicy,
    name: Copied,
    follows: Following | None = None,
) -> PolicyCopy:
    """Load the model at `path` as the copy `name`, where the config places it. Raises
    UnusableModel, UnusableDevice."""
    ranks, where, replays = copied.ranks, copied.ranks.device, False
    if isinstance(config, RLConfig):
        where = place(f"placement.{name}", getattr(config.placement, name), ranks)
        # An earlier policy replays the recorded experts. Another model routes by itself.
        replays = name == "lagged" and config.algorithm.router.replay
    # A copy on another device is whole.
    sharded = is_sharded(copied.policy) and where == ranks.device
    assert isinstance(config.model, PretrainedModel)
    # A copy that follows stays in float32: steps smaller than a rounding step would be lost in
    # bfloat16.
    frozen = load_model(path, config.model, where, follows is None, ranks if sharded else None)
    frozen.model.eval().requires_grad_(False)
    if copied.compiled:
        compile_blocks(frozen.model, copied.compiled)
    routing = Routing(frozen.model) if replays else None
    logprobs = TokenLogprobs(frozen.model, None if sharded else frozen.autocast, routing)
    if sharded:
        shard(logprobs, frozen.model, frozen.autocast, ranks)
    copy = PolicyCopy(logprobs, follows, tokenizer=frozen.tokenizer)
    if offloads(name, config.training, ranks):
        copy.offload = Offload(frozen.model.parameters)
    return copy


def check_tokens(key: str, path: str, policy: Any, other: Any) -> None:
    """Raise UnusableModel if the tokenizer of the model at `path`, `other`, has other tokens than
    the policy's."""
    if difference := vocabulary_difference(policy.get_vocab(), other.get_vocab()):
        raise UnusableModel(
            f"{key} {path}: this model has another tokenizer than the policy, so it cannot score "
            f"its tokens: {difference}"
        )


def check_follows(key: str, path: str, copy: PolicyCopy, policy: TokenLogprobs) -> None:
    """Raise UnusableModel if a copy that follows the policy has weights of other sizes."""
    if copy.following is None:
        return
    policy_shapes = {name: weight.shape for name, weight in policy.model.named_parameters()}
    copy_shapes = {name: weight.shape for name, weight in copy.parameters.items()}
    name = next(
        (n for n in {**policy_shapes, **copy_shapes} if policy_shapes.get(n) != copy_shapes.get(n)),
        None,
    )
    if name is not None:
        raise UnusableModel(
            f"{key} {path}: a reference that follows the policy has its weights, and {name} is "
            f"{_shape(copy_shapes.get(name))} there and {_shape(policy_shapes.get(name))} in the "
            "policy: set algorithm.kl.reference.type to frozen, or name a model of the same "
            "architecture"
        )


def _shape(shape: torch.Size | None) -> str:
    return "missing" if shape is None else " × ".join(map(str, shape))


def following(config: Reference | LaggedProximal) -> Following | None:
    """Return how a copy of this kind follows the policy, or None for a frozen copy."""
    match config:
        case FrozenReference():
            return None
        case EMAReference(rate=rate):
            return Following(rate=rate)
        case RefreshReference(every=every) | LaggedProximal(every=every):
            return Following(every=every)
