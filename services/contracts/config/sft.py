"""A supervised run."""

from typing import Any, Literal

from pydantic import model_validator

from services.contracts.config.base import Section, refuse_if
from services.contracts.config.data import SFTData
from services.contracts.config.lora import MUON_BESIDE_ADAPTERS
from services.contracts.config.model import Model, PretrainedModel, ScratchModel, lora_of
from services.contracts.config.objective.supervised import DPO, Likelihood, SupervisedObjective
from services.contracts.config.optimizer import MuonAdamW, SFTAdamW, SFTOptimizer, high_rate
from services.contracts.config.router import Balance
from services.contracts.config.tracking import Tracking
from services.contracts.config.training import Packing, SFTSchedule, SFTTraining, Validation


def with_default_optimizer(raw: dict[str, Any]) -> dict[str, Any]:
    """`raw`, a whole supervised config, with Muon as the optimizer of a model from scratch, unless
    it names one."""
    model, optimizer = raw.get("model"), raw.get("optimizer", {})
    if not (isinstance(model, dict) and isinstance(optimizer, dict)):
        return raw
    if model.get("source") != "scratch" or "type" in optimizer:
        return raw
    return {**raw, "optimizer": {"type": "muon", **optimizer}}


class SFTConfig(Section):
    """Supervised training of a model, from nothing or from an existing one."""

    type: Literal["sft"]
    model: Model
    """The model to train."""
    data: SFTData
    """The rows to learn from."""
    objective: SupervisedObjective = Likelihood()
    """The loss over these rows."""
    packing: Packing | None = None
    """Batches of a number of tokens; default: batches of `training.rows_per_step` rows."""
    optimizer: SFTOptimizer = SFTAdamW()
    """The optimizer. The default of a model from scratch is `muon`."""
    schedule: SFTSchedule = SFTSchedule()
    """Learning rate schedule."""
    router: Balance = Balance()
    """Routers of a mixture-of-experts model."""
    training: SFTTraining = SFTTraining()
    """Length, batch, micro-batches and checkpoints."""
    validation: Validation = Validation()
    """Rows that are not trained."""
    tracking: Tracking = Tracking()
    """Experiment trackers that get this run's metrics."""

    def warnings(self) -> list[str]:
        """Settings that are allowed but probably a mistake, each with its key."""
        path = self.model.path if isinstance(self.model, PretrainedModel) else ""
        return [f"optimizer.{key}: {sentence}" for key, sentence in high_rate(self.optimizer, path)]

    @model_validator(mode="after")
    def _batch(self) -> "SFTConfig":
        refuse_if(
            self.packing is not None and self.training.rows_per_step is not None,
            f"training.rows_per_step {self.training.rows_per_step} and packing.tokens_per_step "
            f"{self.packing and self.packing.tokens_per_step} both say how large a step is: leave "
            "one out",
        )
        self.longest_row(self.model.max_length if isinstance(self.model, ScratchModel) else None)
        return self

    @model_validator(mode="after")
    def _objective(self) -> "SFTConfig":
        keeps_reference = "reference" in self.training.offload
        if not isinstance(self.objective, DPO):
            refuse_if(
                keeps_reference,
                "training.offload reference is a model that this run does not load: leave it out, "
                "or set objective.type dpo",
            )
            return self
        refuse_if(
            not isinstance(self.model, PretrainedModel),
            "objective.type dpo compares with the model that the run starts from, and model.source "
            "scratch has random weights: train it on answers first, and set model.path run:RUN",
        )
        refuse_if(
            self.validation.best == "bits_per_byte",
            "validation.best bits_per_byte and objective.type dpo: two answers are compared, and "
            "no text is measured: set it to loss, or leave it out",
        )
        refuse_if(
            self.packing is not None,
            "packing and objective.type dpo: the two answers of a row belong to one step: leave "
            "packing out, and set training.rows_per_step",
        )
        refuse_if(
            self.data.train_on == "all",
            "data.train_on all and objective.type dpo: the answers alone are compared: leave "
            "train_on out",
        )
        refuse_if(
            keeps_reference and lora_of(self.model) is not None,
            "training.offload reference: with model.lora the reference is the policy without its "
            "adapters, and takes no memory: leave it out",
        )
        return self

    @model_validator(mode="after")
    def _optimizer(self) -> "SFTConfig":
        refuse_if(
            self.optimizer.in_backward,
            "optimizer.in_backward cannot add up the gradients of several micro-batches, which "
            "a supervised run has: leave it out",
        )
        refuse_if(
            isinstance(self.optimizer, MuonAdamW) and lora_of(self.model) is not None,
            MUON_BESIDE_ADAPTERS,
        )
        return self

    def longest_row(self, positions: int | None) -> int | None:
        """Return the tokens of the longest row for a model with `positions` positions, or None for
        no limit. Raises ValueError if the model has fewer positions, or if packed rows do not make
        up a step."""
        wanted = self.data.max_seq_len
        if wanted is not None and positions is not None:
            refuse_if(
                wanted > positions,
                f"data.max_seq_len {wanted} is more than the {positions} positions of the model: "
                "lower it, or raise model.max_length of a model from scratch",
            )
        longest = wanted if wanted is not None else positions
        if self.packing is not None and longest is not None:
            check_packed_rows(self.packing, longest)
        return longest


def check_packed_rows(packing: Packing, longest: int) -> int:
    """Return the number of rows of `longest` tokens in a step. Raises ValueError if whole rows do
    not make up `tokens_per_step`."""
    rows, rest = divmod(packing.tokens_per_step, longest)
    below, above = rows * longest, (rows + 1) * longest
    refuse_if(
        rest > 0,
        f"packing.tokens_per_step {packing.tokens_per_step} is no multiple of the {longest} tokens "
        f"of a row (data.max_seq_len, or the model's positions): set it to "
        + (f"{below} or {above}" if rows else str(above)),
    )
    return rows
